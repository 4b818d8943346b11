"""The offline backlog: prompts from a file in one of the usual forms."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from loadgen.errors import TraceError
from loadgen.workload.files import csv_rows, errors_named, first_line, json_rows
from loadgen.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from shared.bounds import Count

PROMPT_FIELDS = ("prompt", "question", "text", "input")
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
DEFAULT_MAX_TOKENS = 128
CHOICE_MAX_TOKENS = 1  # a multiple-choice prompt ends with "Answer:", and the letter is one token


class Lengths(msgspec.Struct, frozen=True):
    """A row of a file of lengths."""

    num_prefill_tokens: Count
    num_decode_tokens: Count


class Conversation(msgspec.Struct, frozen=True):
    """A row, or a batch line's body, that has messages."""

    messages: tuple[dict[str, Any], ...]


class MaxTokens(msgspec.Struct, frozen=True):
    """Of any row that says so; the second goes before the first."""

    max_tokens: Count
    max_completion_tokens: Count | None = None


@dataclass(frozen=True, slots=True)
class OfflinePrompt:
    """One line of the backlog: ``text``, ``messages``, a length to make a prompt of, or a batch line's ``body``. A
    length may say what it begins with: ``block_ids`` and ``block_tokens`` are as in ``TraceRequest``. ``asked_tokens``:
    in a simulation, what its client allows for an answer that ends by itself after ``max_tokens``, which nobody knows
    beforehand; None: the answer has all of ``max_tokens``."""

    max_tokens: int
    text: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    num_prompt_tokens: int | None = None
    endpoint: str | None = None
    body: dict[str, Any] | None = None
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    asked_tokens: int | None = None

    @property
    def shape(self) -> TraceRequest:
        """Of a length: what its prompt is made by."""
        return TraceRequest(0.0, self.num_prompt_tokens or 1, self.max_tokens, self.block_ids, self.block_tokens)


def load_backlog(path: Path, limit: int | None = None, max_tokens: int | None = None) -> list[OfflinePrompt]:
    """The first ``limit`` prompts of a JSONL or CSV file, gzip or plain. ``max_tokens`` replaces what the file or its
    form says. Raises TraceError with the file and the line."""
    prompts = list(islice(_read_jsonl(path) if first_line(path).startswith("{") else _read_csv(path), limit))
    if not prompts:
        raise TraceError(f"{path}: no prompts in the file")
    endpoints = {prompt.endpoint for prompt in prompts if prompt.endpoint}
    if len(endpoints) > 1:
        raise TraceError(f"{path}: a batch has one endpoint, the file has {' and '.join(sorted(endpoints))}")
    return [_with_max_tokens(prompt, max_tokens) for prompt in prompts]


def _with_max_tokens(prompt: OfflinePrompt, max_tokens: int | None) -> OfflinePrompt:
    if max_tokens is None:
        return prompt
    if prompt.body is None:
        return replace(prompt, max_tokens=max_tokens)
    kept = {key: value for key, value in prompt.body.items() if key != "max_completion_tokens"}
    return replace(prompt, max_tokens=max_tokens, body=kept | {"max_tokens": max_tokens})


def _read_jsonl(path: Path) -> Iterator[OfflinePrompt]:
    for number, row in json_rows(path, dict[str, Any]):
        with errors_named(path, number):
            prompt = _from_object(row)
        yield prompt


def _from_object(row: dict[str, Any]) -> OfflinePrompt:
    if isinstance(row.get("body"), dict):
        return _from_batch_line(row)
    if isinstance(row.get("messages"), list):
        messages = msgspec.convert(row, Conversation).messages
        return OfflinePrompt(_max_tokens(row, DEFAULT_MAX_TOKENS), messages=messages)
    field = next((name for name in PROMPT_FIELDS if isinstance(row.get(name), str)), None)
    if field is None:
        raise ValueError(f"no prompt: one of {', '.join(PROMPT_FIELDS)}, messages, or a batch line's body is needed")
    if isinstance(choices := row.get("choices"), list):
        return OfflinePrompt(_max_tokens(row, CHOICE_MAX_TOKENS), text=multiple_choice(row[field], choices))
    return OfflinePrompt(_max_tokens(row, DEFAULT_MAX_TOKENS), text=row[field])


def _from_batch_line(row: dict[str, Any]) -> OfflinePrompt:
    if row.get("url") not in ENDPOINTS:
        raise ValueError(f"url must be one of {', '.join(ENDPOINTS)}, not {row.get('url')!r}")
    body = row["body"]
    if isinstance(body.get("messages"), list):
        msgspec.convert(body, Conversation)
    return OfflinePrompt(_max_tokens(body, DEFAULT_MAX_TOKENS), endpoint=row["url"], body=body)


def _max_tokens(row: Mapping[str, Any], default: int) -> int:
    """What a row, or a body, says itself, one at least. Raises ValueError for what is no number."""
    told = {name: value for name, value in row.items() if value not in (None, "")}
    said = msgspec.convert({"max_tokens": default, **told}, MaxTokens, strict=False)
    return max(1, said.max_tokens if said.max_completion_tokens is None else said.max_completion_tokens)


def multiple_choice(question: str, choices: list[Any]) -> str:
    """MMLU's prompt form: the question, lettered choices, and ``Answer:``."""
    lettered = [f"{chr(ord('A') + i)}. {choice}" for i, choice in enumerate(choices)]
    return "\n".join([question, *lettered, "Answer:"])


def _read_csv(path: Path) -> Iterator[OfflinePrompt]:
    columns = [name.strip().strip('"').lower() for name in first_line(path).split(",")]
    if set(Lengths.__struct_fields__) <= set(columns):
        for _, lengths in csv_rows(path, Lengths):
            yield OfflinePrompt(max(1, lengths.num_decode_tokens), num_prompt_tokens=max(1, lengths.num_prefill_tokens))
        return
    field = next((name for name in PROMPT_FIELDS if name in columns), None)
    if field is None:
        raise TraceError(
            f"{path}, line 1: no prompt column ({', '.join(PROMPT_FIELDS)}) and no lengths "
            f"({','.join(Lengths.__struct_fields__)})"
        )
    for number, row in csv_rows(path, dict[str, str]):
        with errors_named(path, number):
            max_tokens = _max_tokens(row, DEFAULT_MAX_TOKENS)
        yield OfflinePrompt(max_tokens, text=row[field])
