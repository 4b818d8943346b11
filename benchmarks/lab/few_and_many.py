"""Prompts with short answers beside prompts with long ones: questions of few subjects, each after the answered examples
of its subject, and stories that go on from a passage."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.lab.few_shots import few_shot_prompts
from loadgen.errors import WorkloadError
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import (
    NUM_FILLER_UNITS,
    PromptMaker,
    generated_text,
    load_tokenizer,
    read_filler,
    text_prompts,
)
from loadgen.workload.traces import TraceRequest

STORY = "Tell a long story. It begins like this:\n\n"


@dataclass(frozen=True)
class FewAndMany:
    """In tokens, where it is not numbers of prompts. Answers are at most so long."""

    subjects: int = 6
    questions: int = 20  # of each subject
    examples_tokens: int = 600  # that a subject's questions share: of real ones the most
    question_tokens: int = 80  # of drawn ones
    answer_tokens: int = 4
    stories: int = 16
    passage_tokens: int = 100
    story_tokens: int = 400

    def prompts(
        self, model_path: Path, shots: Path | None, questions: Path | None, passages: Path | None, seed: int
    ) -> list[OfflinePrompt]:
        """All of them as texts, in random order. ``shots`` and ``questions``: MMLU's, drawn where they are not given;
        ``passages``: a text that they are cut from, likewise. Raises TraceError, and WorkloadError where MMLU has not
        as many."""
        if shots is not None and questions is not None:
            asked = self._asked(shots, questions, model_path, seed)
        else:
            asked = self._drawn(text_prompts(model_path, None, f"{seed}:questions"))
        prompts = asked + self._stories(model_path, passages, seed)
        random.Random(seed).shuffle(prompts)
        return prompts

    def _asked(self, shots: Path, questions: Path, model_path: Path, seed: int) -> list[OfflinePrompt]:
        """Of the first subjects that have enough questions, and examples that are short enough."""
        tokenizer, by_subject = load_tokenizer(model_path), defaultdict[str, list[OfflinePrompt]](list)
        for prompt in few_shot_prompts(shots, questions, seed):
            by_subject[(prompt.text or "").partition("\n")[0]].append(prompt)
        chosen: list[OfflinePrompt] = []
        for _, own in sorted(by_subject.items()):
            examples = (own[0].text or "").rpartition("\n\n")[0]
            if len(own) >= self.questions and len(tokenizer.encode(examples).ids) <= self.examples_tokens:
                chosen += own[: self.questions]
            if len(chosen) == self.subjects * self.questions:
                return [replace(prompt, max_tokens=self.answer_tokens) for prompt in chosen]
        raise WorkloadError(
            f"{questions}: only {len(chosen) // max(1, self.questions)} subjects have {self.questions} questions and "
            f"examples of at most {self.examples_tokens} tokens"
        )

    def _drawn(self, made: PromptMaker[int] | PromptMaker[str]) -> list[OfflinePrompt]:
        num_tokens, prompts = self.examples_tokens + self.question_tokens, []
        for index in range(self.subjects * self.questions):
            shape = TraceRequest(0.0, num_tokens, self.answer_tokens, (index % self.subjects,), self.examples_tokens)
            prompts.append(OfflinePrompt(self.answer_tokens, text=_text(made.prompt(shape, index))))
        return prompts

    def _stories(self, model_path: Path, passages: Path | None, seed: int) -> list[OfflinePrompt]:
        tokenizer = load_tokenizer(model_path)
        text = read_filler(passages) if passages else generated_text(NUM_FILLER_UNITS)
        ids: Sequence[int] = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) < self.stories * self.passage_tokens:
            raise WorkloadError(f"{passages}: {len(ids)} tokens are too few for {self.stories} passages")
        starts = random.Random(f"{seed}:stories").sample(range(len(ids) // self.passage_tokens), self.stories)
        cut = (ids[start * self.passage_tokens :][: self.passage_tokens] for start in starts)
        return [OfflinePrompt(self.story_tokens, text=STORY + tokenizer.decode(each)) for each in cut]


def _text(made: list[int] | str) -> str:
    assert isinstance(made, str), "text_prompts joins texts"
    return made
