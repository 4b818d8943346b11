"""Readers for published arrival traces: Azure LLM inference CSV, Mooncake JSONL and BurstGPT CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import msgspec

from loadgen.errors import TraceError
from loadgen.workload.files import first_line, numbered_lines, numbered_rows, open_text

MOONCAKE_BLOCK_TOKENS = 512

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One arrival. ``block_ids`` name the prompt's blocks of ``block_tokens`` tokens each, the last one perhaps
    not full: equal ids hold equal tokens. Without them the prompt shares nothing."""

    arrival_s: float  # since the trace's first arrival; in a window, since the window's start
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace in order of arrival, read lazily; the first arrives at 0.

    The format is told from the first line. Raises TraceError with the file and the line for a file that is in none
    of the formats, a field that is not what it should be, or times that run backwards.
    """
    read = trace_format(path)
    first_s: float | None = None
    last_s = float("-inf")
    for number, request in read(path):
        if request.arrival_s < last_s:
            raise TraceError(f"{path}, line {number}: earlier than the line before; sort the trace by time")
        last_s = request.arrival_s
        if first_s is None:
            first_s = request.arrival_s
        yield replace(request, arrival_s=request.arrival_s - first_s)


Reader = Callable[[Path], Iterator[tuple[int, TraceRequest]]]


def trace_format(path: Path) -> Reader:
    """The reader for the file, by its header (CSV) or its first object (JSONL). Raises TraceError for neither."""
    head = first_line(path)
    if head.startswith("{"):
        return read_mooncake
    columns = tuple(column.strip().strip('"') for column in head.split(","))
    if set(AZURE_COLUMNS) <= set(columns):
        return read_azure
    if set(BURSTGPT_COLUMNS[:4]) <= set(columns):
        return read_burstgpt
    raise TraceError(
        f"{path}, line 1: not a known trace. Known: Azure CSV ({','.join(AZURE_COLUMNS)}), "
        f"BurstGPT CSV ({','.join(BURSTGPT_COLUMNS)}), "
        "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
    )


def read_azure(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    """Azure/AzurePublicDataset: TIMESTAMP with up to 7 decimals of a second (and perhaps an offset), token counts."""
    for number, (stamp, prompt, output) in _columns(path, AZURE_COLUMNS):
        yield number, TraceRequest(_instant_s(path, number, stamp), *_tokens(path, number, prompt, output))


def read_burstgpt(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    """HPMLL/BurstGPT: seconds since the trace's start; a failed request has 0 response tokens and is left out."""
    for number, (stamp, _, prompt, output) in _columns(path, BURSTGPT_COLUMNS[:4]):
        arrival_s = _number(path, number, "Timestamp", stamp)
        prompt_tokens, output_tokens = _tokens(path, number, prompt, output)
        if output_tokens > 0:
            yield number, TraceRequest(arrival_s, prompt_tokens, output_tokens)


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


_mooncake_decoder = msgspec.json.Decoder(_MooncakeLine)


def read_mooncake(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    """kvcache-ai/Mooncake: milliseconds, token counts, and ids of the prompt's 512-token blocks."""
    with open_text(path) as file:
        for number, line in numbered_lines(file):
            try:
                row = _mooncake_decoder.decode(line)
            except msgspec.DecodeError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
            if row.input_length < 0 or row.output_length < 0:
                raise TraceError(f"{path}, line {number}: a length is negative")
            yield number, TraceRequest(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)


def _columns(path: Path, names: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    with open_text(path) as file:
        rows = numbered_rows(file, path)
        _, header = next(rows)
        positions = [[column.strip() for column in header].index(name) for name in names]
        for number, row in rows:
            if len(row) < len(header):
                raise TraceError(f"{path}, line {number}: {len(row)} fields instead of {len(header)}")
            yield number, [row[position].strip() for position in positions]


def _instant_s(path: Path, number: int, stamp: str) -> float:
    """Seconds on a time axis; the fraction is read apart because ``datetime`` keeps only six of its digits."""
    whole, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    offset = rest[len(digits) :]
    try:
        instant = datetime.fromisoformat(whole + offset)
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: TIMESTAMP {stamp!r} is not a time") from error
    return (instant - datetime(2000, 1, 1, tzinfo=instant.tzinfo)).total_seconds() + float(f"0.{digits or 0}")


def _tokens(path: Path, number: int, prompt: str, output: str) -> tuple[int, int]:
    counts = []
    for name, text in (("prompt", prompt), ("output", output)):
        value = _number(path, number, f"{name} tokens", text)
        if value < 0 or value != int(value):
            raise TraceError(f"{path}, line {number}: {name} tokens {text!r} is not a count")
        counts.append(int(value))
    return counts[0], counts[1]


def _number(path: Path, number: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise TraceError(f"{path}, line {number}: {name} {text!r} is not a number") from error
    if value != value or value in (float("inf"), float("-inf")):
        raise TraceError(f"{path}, line {number}: {name} {text!r} is not a finite number")
    return value
