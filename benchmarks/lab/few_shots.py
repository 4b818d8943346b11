"""Prompts with answered examples before the question: MMLU as its authors write them (Hendrycks et al., 2021), BBH as
its authors do (Suzgun et al., 2022)."""

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
CHAIN_OF_THOUGHT_TOKENS = 126  # of the answers in BBH's own examples, in the mean


class Question(msgspec.Struct, frozen=True):
    """A line of MMLU's file. ``text``: up to ``Answer:``."""

    subject: str
    question: str
    choices: list[str]
    answer: str

    @property
    def text(self) -> str:
        return multiple_choice(self.question, self.choices)


class Task(msgspec.Struct, frozen=True):
    """A line of BBH's file of questions."""

    task: str
    input: str


class TaskPrompt(msgspec.Struct, frozen=True):
    """A line of BBH's file of three answered examples for each task."""

    task: str
    prompt: str


def few_shot_prompts(shots: Path, questions: Path, seed: int) -> list[OfflinePrompt]:
    """MMLU: one prompt a question: a sentence about its subject, the first five ``shots`` of the subject with their
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
    return _shuffled(prompts, questions, f"{seed}:mmlu")


def thought_prompts(task_prompts: Path, tasks: Path, seed: int) -> list[OfflinePrompt]:
    """BBH: one prompt a question, three examples of its task with a chain of thought before it. Shuffled. Raises
    TraceError, also for a task without examples."""
    examples = {each.task: each.prompt for _, each in json_rows(task_prompts, TaskPrompt)}
    prompts = []
    for number, task in json_rows(tasks, Task):
        if task.task not in examples:
            raise TraceError(f"{tasks}, line {number}: {task_prompts} has no examples of {task.task}")
        text = f"{examples[task.task]}\n\nQ: {task.input}\nA: Let's think step by step."
        prompts.append(OfflinePrompt(CHAIN_OF_THOUGHT_TOKENS, text=text))
    return _shuffled(prompts, tasks, f"{seed}:bbh")


def as_token_ids(prompts: Sequence[OfflinePrompt]) -> list[OfflinePrompt]:
    """The same, a token for every four characters."""
    encoder = PromptEncoder(None)
    return [replace(prompt, text=None, body={"prompt": encoder.token_ids(prompt)}) for prompt in prompts]


def token_ids_of(prompt: OfflinePrompt) -> list[int]:
    """Of one that ``as_token_ids`` made."""
    assert prompt.body is not None
    token_ids: list[int] = prompt.body["prompt"]
    return token_ids


def _shuffled(prompts: list[OfflinePrompt], path: Path, seed: str) -> list[OfflinePrompt]:
    """Raises TraceError where there is none."""
    if not prompts:
        raise TraceError(f"{path}: no questions in the file")
    random.Random(seed).shuffle(prompts)
    return prompts
