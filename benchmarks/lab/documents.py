"""Backlogs of questions about documents, drawn: the shape of LooGLE, ToolBench and the like, without their texts."""

import random
from dataclasses import dataclass
from itertools import chain, count, islice

from benchmarks.lab.drawn import Length, Lognormal
from loadgen.workload.backlog import OfflinePrompt

DOCUMENT_DEVIATION = 0.26  # of the mean: the 9 documents of LooGLE that are free to be passed on (Wikipedia's)
QUESTION_DEVIATION = 0.5


@dataclass(frozen=True, slots=True)
class Documents:
    """Prompts of ``prompt_tokens`` in the mean, a document and then a question. ``shared``: of all prompt tokens, the
    share that a cache without bounds would not compute (Echo's Table 1); 0 is prompts that have no document.
    ``questions``: about one document, in the mean. Raises ValueError for more sharing than the questions allow."""

    name: str
    prompt_tokens: float
    shared: float
    output: Length
    questions: int = 20
    is_shuffled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.shared < 1 - 1 / self.questions:
            raise ValueError(f"{self.questions} questions a document share less than {1 - 1 / self.questions:.0%}")

    @property
    def document_tokens(self) -> float:
        """In the mean. One of ``questions`` computes it, the others find it."""
        return self.shared * self.prompt_tokens / (1 - 1 / self.questions)

    def draw(self, size: int, seed: int) -> list[OfflinePrompt]:
        """In random order, as requests of a batch that nobody has sorted, or document by document; the same ones for
        the same seed."""
        rng = random.Random(f"{self.name}:{seed}")
        asked = chain.from_iterable(self._about(number, rng) for number in count())
        prompts = list(islice(asked, size))
        if self.is_shuffled:
            rng.shuffle(prompts)
        return prompts

    def _about(self, number: int, rng: random.Random) -> list[OfflinePrompt]:
        """All questions about one document."""
        own = _around(self.prompt_tokens - self.document_tokens, QUESTION_DEVIATION)
        if not self.shared:
            return [OfflinePrompt(self.output(rng), num_prompt_tokens=own(rng))]
        document = _around(self.document_tokens, DOCUMENT_DEVIATION)(rng)
        return [
            OfflinePrompt(
                self.output(rng), num_prompt_tokens=document + own(rng), block_ids=(number,), block_tokens=document
            )
            for _ in range(rng.randint(1, 2 * self.questions - 1))
        ]


def _around(mean: float, deviation: float) -> Lognormal:
    """``deviation``: as a share of the mean."""
    return Lognormal(mean, deviation * mean)
