"""Readers for published arrival traces: Azure LLM inference CSV, Mooncake JSONL and BurstGPT CSV."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from loadgen.errors import TraceError
from loadgen.workload.files import csv_rows, errors_named, first_line, json_rows
from shared.bounds import Count

MOONCAKE_BLOCK_TOKENS = 512

Seconds = Annotated[float, Meta(ge=-1e12, le=1e12)]  # finite


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One arrival. ``block_ids`` name the prompt's blocks of ``block_tokens`` tokens each, the last one perhaps
    not full: equal ids hold equal tokens. Without them the prompt shares nothing."""

    arrival_s: float  # since the trace's first arrival; in a window, since the window's start
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = MOONCAKE_BLOCK_TOKENS


class AzureRow(msgspec.Struct, frozen=True, rename="lower"):
    """Azure/AzurePublicDataset: up to 7 decimals of a second, and perhaps an offset."""

    TIMESTAMP: str
    ContextTokens: Count
    GeneratedTokens: Count

    def request(self) -> TraceRequest:
        """Raises ValueError."""
        return TraceRequest(_instant_s(self.TIMESTAMP), self.ContextTokens, self.GeneratedTokens)


class BurstGptRow(msgspec.Struct, frozen=True):
    """HPMLL/BurstGPT: seconds since the trace's start; a failed request has 0 response tokens, and is left out."""

    seconds: Seconds = msgspec.field(name="timestamp")
    prompt_tokens: Count = msgspec.field(name="request tokens")
    output_tokens: Count = msgspec.field(name="response tokens")

    def request(self) -> TraceRequest | None:
        return TraceRequest(self.seconds, self.prompt_tokens, self.output_tokens) if self.output_tokens else None


class MooncakeLine(msgspec.Struct, frozen=True):
    """kvcache-ai/Mooncake: ``hash_ids`` are those of the prompt's 512-token blocks."""

    timestamp: float  # milliseconds
    input_length: Count
    output_length: Count
    hash_ids: tuple[int, ...] = ()

    def request(self) -> TraceRequest:
        return TraceRequest(self.timestamp / 1000, self.input_length, self.output_length, self.hash_ids)


TraceRow = AzureRow | BurstGptRow | MooncakeLine
MOONCAKE_FIELD = re.compile(rf'"({"|".join(MooncakeLine.__struct_fields__)})"\s*:')


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """The requests of a trace in order of arrival, read lazily; the first arrives at 0. Raises TraceError with the file
    and the line for a file in none of the formats, a field that is not as it should be, or times that run backwards."""
    first_s: float | None = None
    last_s = float("-inf")
    for number, row in _rows(path):
        with errors_named(path, number):
            request = row.request()
        if request is None:
            continue
        if request.arrival_s < last_s:
            raise TraceError(f"{path}, line {number}: earlier than the line before; sort the trace by time")
        last_s = request.arrival_s
        if first_s is None:
            first_s = request.arrival_s
        yield replace(request, arrival_s=request.arrival_s - first_s)


def _rows(path: Path) -> Iterator[tuple[int, TraceRow]]:
    """By the header (CSV) or the first object (JSONL). Raises TraceError for neither."""
    head = first_line(path)
    if head.startswith("{") and MOONCAKE_FIELD.search(head):
        return json_rows(path, MooncakeLine)
    columns = {column.strip().strip('"').lower() for column in head.split(",")}
    for kind in (AzureRow, BurstGptRow):
        if columns.issuperset(kind.__struct_encode_fields__):
            return csv_rows(path, kind)
    raise TraceError(
        f"{path}, line 1: not a known trace. Known: Azure CSV (TIMESTAMP,ContextTokens,GeneratedTokens), "
        "BurstGPT CSV (Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type), "
        "Mooncake JSONL (timestamp, input_length, output_length, hash_ids)"
    )


def _instant_s(stamp: str) -> float:
    """Seconds; the fraction is read apart, as ``datetime`` keeps only six of its digits. Raises ValueError."""
    whole, dot, rest = stamp.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))] if dot else ""
    try:
        if "\0" in stamp:
            raise ValueError("datetime takes a NUL for the end, or for the space before the hour")
        instant = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError as error:
        raise ValueError(f"TIMESTAMP {stamp!r} is not a time") from error
    origin = datetime(2000, 1, 1, tzinfo=instant.tzinfo and UTC)
    return (instant - origin).total_seconds() + float(f"0.{digits or 0}")
