"""MMLU's few-shot prompts, as its authors write them (Hendrycks et al., 2021)."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.lab.lab import PromptEncoder
from loadgen.errors import TraceError
from loadgen.workload.backlog import CHOICE_MAX_TOKENS, OfflinePrompt, multiple_choice
from loadgen.workload.files import json_rows

SHOTS = 5


class Question(msgspec.Struct, frozen=True):
    """A line of the file. ``text``: up to ``Answer:``."""

    subject: str
    question: str
    choices: list[str]
    answer: str

    @property
    def text(self) -> str:
        return multiple_choice(self.question, self.choices)


def few_shot_prompts(shots: Path, questions: Path, seed: int) -> list[OfflinePrompt]:
    """One prompt a question: a sentence about its subject, the first five ``shots`` of the subject with their
    answers, the question. Shuffled, since the file is sorted by subject and requests are not. Raises TraceError."""
    answered: dict[str, list[str]] = defaultdict(list)
    for _, shot in json_rows(shots, Question):
        answered[shot.subject].append(f"{shot.text} {shot.answer}")
    prompts = []
    for _, question in json_rows(questions, Question):
        subject = question.subject.replace("_", " ")
        heading = f"The following are multiple choice questions (with answers) about {subject}."
        text = "\n\n".join([heading, *answered[question.subject][:SHOTS], question.text])
        prompts.append(OfflinePrompt(CHOICE_MAX_TOKENS, text=text))
    if not prompts:
        raise TraceError(f"{questions}: no questions in the file")
    random.Random(f"{seed}:mmlu").shuffle(prompts)
    return prompts


def as_token_ids(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """The same, a token for every four characters."""
    encoder = PromptEncoder(None)
    return [replace(prompt, text=None, body={"prompt": encoder.token_ids(prompt)}) for prompt in prompts]


def token_ids_of(prompt: OfflinePrompt) -> list[int]:
    """Of one that ``as_token_ids`` made."""
    assert prompt.body is not None
    token_ids: list[int] = prompt.body["prompt"]
    return token_ids
