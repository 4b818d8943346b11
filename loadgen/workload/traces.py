"""Readers for published arrival traces: Azure LLM inference CSV, Mooncake JSONL and BurstGPT CSV."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from loadgen.errors import TraceError
from loadgen.workload.files import csv_rows, errors_named, first_line, json_rows

MOONCAKE_BLOCK_TOKENS = 512

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]  # finite


class AzureRow(msgspec.Struct, frozen=True, rename="lower"):
    """Azure/AzurePublicDataset: up to 7 decimals of a second, and perhaps an offset."""

    TIMESTAMP: str
    ContextTokens: Count
    GeneratedTokens: Count


class BurstGptRow(msgspec.Struct, frozen=True):
    """HPMLL/BurstGPT: seconds since the trace's start; a failed request has 0 response tokens."""

    seconds: Seconds = msgspec.field(name="timestamp")
    prompt_tokens: Count = msgspec.field(name="request tokens")
    output_tokens: Count = msgspec.field(name="response tokens")


class MooncakeLine(msgspec.Struct, frozen=True):
    """kvcache-ai/Mooncake: ``hash_ids`` are those of the prompt's 512-token blocks."""

    timestamp: float  # milliseconds
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...] = ()


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
    columns = {column.strip().strip('"').lower() for column in head.split(",")}
    for reader, kind in ((read_azure, AzureRow), (read_burstgpt, BurstGptRow)):
        if columns.issuperset(kind.__struct_encode_fields__):
            return reader
    raise TraceError(
        f"{path}, line 1: not a known trace. Known: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), "
        "BurstGPT CSV (Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type), "
        "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
    )


def read_azure(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    for number, row in csv_rows(path, AzureRow):
        with errors_named(path, number):
            instant_s = _instant_s(row.TIMESTAMP)
        yield number, TraceRequest(instant_s, row.ContextTokens, row.GeneratedTokens)


def read_burstgpt(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    """Failed requests are left out."""
    for number, row in csv_rows(path, BurstGptRow):
        if row.output_tokens > 0:
            yield number, TraceRequest(row.seconds, row.prompt_tokens, row.output_tokens)


def read_mooncake(path: Path) -> Iterator[tuple[int, TraceRequest]]:
    for number, row in json_rows(path, MooncakeLine):
        yield number, TraceRequest(row.timestamp / 1000, row.input_length, row.output_length, row.hash_ids)


def _instant_s(stamp: str) -> float:
    """Seconds on a time axis; the fraction is read apart because ``datetime`` keeps only six of its digits. Raises
    ValueError."""
    whole, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    try:
        instant = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {stamp!r} is not a time") from error
    return (instant - datetime(2000, 1, 1, tzinfo=instant.tzinfo)).total_seconds() + float(f"0.{digits or 0}")
