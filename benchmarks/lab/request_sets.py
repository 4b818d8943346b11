"""Sets of offline requests, each of one kind, as BlendServe's appendix A.1 has them: what a client submits at a time.
Each begins with a system prompt of its own."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from benchmarks.lab.drawn import Length, Lognormal
from benchmarks.lab.few_shots import as_token_ids, few_shot_prompts, token_ids_of
from loadgen.errors import TraceError
from loadgen.workload.backlog import OfflinePrompt, load_backlog
from loadgen.workload.files import json_rows
from loadgen.workload.traces import read_trace

BLOCK_TOKENS = 16  # a KV block, of which shared beginnings are whole multiples
SYSTEM_TOKENS = BLOCK_TOKENS
FIRST_SYSTEM_ID = 1 << 22  # beyond the tokens of every prompt
ASKED_TOKENS = 4096  # max_tokens of requests whose answers end by themselves, and before
SUBJECTS = 57  # of MMLU
TRUSTED_QUANTILES = 199  # of 200: the last reaches to the longest request there was

Lengths = Callable[[random.Random], tuple[int, int]]  # draws the tokens of a prompt and of its output


class RequestSet(Protocol):
    """Its requests in an order of their own."""

    @property
    def name(self) -> str: ...

    def prompts(self, size: int, seed: int) -> list[OfflinePrompt]:
        """The first ``size`` of as many as are asked for; the same ones for the same seed. Raises LoadgenError."""


@dataclass(frozen=True, slots=True)
class DrawnSet:
    """Prompts that share their system prompt alone. ``is_known``: outputs are as long as they are asked to be, as those
    of videos; else they end by themselves. ``number``: of the set among others."""

    name: str
    number: int
    lengths: Lengths
    is_known: bool = False

    def prompts(self, size: int, seed: int) -> list[OfflinePrompt]:
        rng = random.Random(f"{self.name}:{seed}")
        return [self._prompt(*self.lengths(rng)) for _ in range(size)]

    def _prompt(self, prompt_tokens: int, output_tokens: int) -> OfflinePrompt:
        output_tokens = max(1, output_tokens)
        return OfflinePrompt(
            output_tokens,
            num_prompt_tokens=SYSTEM_TOKENS + max(1, prompt_tokens),
            block_ids=(FIRST_SYSTEM_ID + self.number,),
            block_tokens=SYSTEM_TOKENS,
            asked_tokens=None if self.is_known else max(ASKED_TOKENS, output_tokens),
        )


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """MMLU's questions with five answered ones before each; its files', else prompts of their shape. Two tokens out, as
    the paper has them (section 3.2)."""

    number: int
    shots: Path | None = None
    questions: Path | None = None
    name: str = "MMLU"
    output_tokens: int = 2

    def prompts(self, size: int, seed: int) -> list[OfflinePrompt]:
        if self.shots is None or self.questions is None:
            return self._drawn(size, seed)
        system = [FIRST_SYSTEM_ID + self.number] * SYSTEM_TOKENS
        asked = _asked(self.shots, self.questions, seed)
        if size > len(asked):
            raise TraceError(f"{self.questions}: {size} questions are wanted, the file has {len(asked)}")
        return [
            OfflinePrompt(self.output_tokens, body={"prompt": system + token_ids}, asked_tokens=ASKED_TOKENS)
            for token_ids in asked[:size]
        ]

    def _drawn(self, size: int, seed: int) -> list[OfflinePrompt]:
        """Lengths around those of the files: 650 tokens of examples, and questions of 120."""
        rng, system = random.Random(f"{self.name}:{seed}"), FIRST_SYSTEM_ID + self.number
        examples = [max(1, round(rng.gauss(650, 300) / BLOCK_TOKENS)) for _ in range(SUBJECTS)]
        question = Lognormal(120.0, 90.0)
        prompts = []
        for _ in range(size):
            subject = rng.randrange(SUBJECTS)
            ids = (system, *(subject * ASKED_TOKENS + place for place in range(examples[subject])))
            prompts.append(
                OfflinePrompt(
                    self.output_tokens,
                    num_prompt_tokens=len(ids) * BLOCK_TOKENS + question(rng),
                    block_ids=ids,
                    block_tokens=BLOCK_TOKENS,
                    asked_tokens=ASKED_TOKENS,
                )
            )
        return prompts


def with_known_lengths(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """The same, each of which is known to be as long as it is."""
    return [replace(prompt, asked_tokens=None) for prompt in prompts]


def apart(prompt: Length, output: Length) -> Lengths:
    """Drawn each for itself."""
    return lambda rng: (prompt(rng), output(rng))


def videos(number: int, mean_tokens: float) -> DrawnSet:
    """OpenVid in kind: a line of text in, all frames out, 256 tokens for each (A.1). Lengths are known: 16,000 tokens
    in the mean by the paper; here ``mean_tokens``, a deviation of half of that, and twice the mean at most."""
    drawn = Lognormal(1.02 * mean_tokens, mean_tokens / 2)

    def output(rng: random.Random) -> int:
        return min(drawn(rng), round(2 * mean_tokens))

    return DrawnSet("videos", number, apart(Lognormal(64.0, 32.0), output), is_known=True)


def of_trace(path: Path) -> Lengths:
    """Azure's conversations, or another trace: a prompt and its output together. Raises TraceError."""
    return _one_of([(each.num_prompt_tokens, each.num_output_tokens) for each in read_trace(path)])


def of_summaries(path: Path) -> Lengths:
    """arXiv's, a file of lengths. Raises TraceError."""
    return _one_of([(each.num_prompt_tokens or 1, each.max_tokens) for each in load_backlog(path)])


class _Quantiles(msgspec.Struct, frozen=True):
    """A line of ServeGen's quantiles of lengths, over a window or over all."""

    model: str
    window_start_s: str | float
    input_q: Annotated[list[float], Meta(min_length=TRUSTED_QUANTILES + 1)]
    output_q: Annotated[list[float], Meta(min_length=TRUSTED_QUANTILES + 1)]


def of_quantiles(path: Path, model: str) -> Lengths:
    """ServeGen's, of one of its models over all its days; prompts and outputs each for themselves. Raises
    TraceError."""
    for _, line in json_rows(path, _Quantiles):
        if line.model == model and line.window_start_s == "all":
            return apart(_between(line.input_q), _between(line.output_q))
    raise TraceError(f"{path}: no lengths of {model} over all days")


@cache
def _asked(shots: Path, questions: Path, seed: int) -> list[list[int]]:
    return [token_ids_of(prompt) for prompt in as_token_ids(few_shot_prompts(shots, questions, seed))]


def _one_of(pairs: Sequence[tuple[int, int]]) -> Lengths:
    return lambda rng: rng.choice(pairs)


def _between(quantiles: Sequence[float]) -> Length:
    def draw(rng: random.Random) -> int:
        place = rng.uniform(0, TRUSTED_QUANTILES)
        low = min(int(place), TRUSTED_QUANTILES - 1)
        return round(quantiles[low] + (place - low) * (quantiles[low + 1] - quantiles[low]))

    return draw
