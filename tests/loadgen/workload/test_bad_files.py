"""Traces and other inputs that are torn or something else: an error in words that names the file and the line."""

import csv
import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from loadgen.errors import TraceError
from loadgen.workload.traces import TraceRequest, read_trace
from tests.fuzzing.files import bad_files

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = HEADER + b"2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
BURST = b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
MOONCAKE = b'{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n' * 2
GOOD = {"azure": AZURE, "burst": BURST, "mooncake": MOONCAKE, "gzip": gzip.compress(MOONCAKE * 50)}
COUNT = 100


@pytest.mark.parametrize("kind", GOOD)
def test_a_trace_is_read_or_refused_in_words(tmp_path: Path, kind: str) -> None:
    path, good = tmp_path / "trace", GOOD[kind]
    path.write_bytes(good)
    assert list(read_trace(path))
    for content in bad_files(good, Random(kind), COUNT):
        path.write_bytes(content)
        try:
            assert all(request.arrival_s >= 0 for request in read_trace(path))
        except TraceError as error:
            assert str(path) in str(error)


@pytest.fixture
def usual_field_limit() -> Iterator[None]:
    """Who reads tables in this process sets it for all."""
    before = csv.field_size_limit(128 * 1024)
    yield
    csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"9999-99-99 00:00:00,1,1", "TIMESTAMP '9999-99-99 00:00:00' is not a time"),
        (b"2023-11-16 18:15:46," + b"9" * 5000 + b",1", "contexttokens"),
        (b"2023-11-16 18:15:46,-1,1", "contexttokens"),
        (b"2023-11-16 18:15:46,nan,1", "contexttokens"),
        (b'"' + b"x" * 200_000 + b'",1,1', "field larger than field limit"),
        (b"2023-11-16 18:15:46\x00,1,1", r"'2023-11-16 18:15:46\x00' is not a time"),
        (b"2023-11-16\x0018:15:46.5,1,1", r"'2023-11-16\x0018:15:46.5' is not a time"),
    ],
)
def test_rows_that_are_none(tmp_path: Path, row: bytes, said: str, usual_field_limit: None) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(HEADER + row + b"\n")
    with pytest.raises(TraceError, match=f"^{re.escape(str(path))}, line .*{re.escape(said)}"):
        list(read_trace(path))


@pytest.mark.parametrize(
    ("first", "second", "later_s"),
    [
        (b"0001-01-01 00:00:00+23:59", b"0001-01-01 00:00:00+23:58", 60.0),  # before the first of UTC
        (b"2023-11-16 18:15:46.5", b"2023-11-16 18:15:46." + b"9" * 5000, 0.5),
    ],
)
def test_times_at_the_edges_of_what_is_one_are_read(
    tmp_path: Path, first: bytes, second: bytes, later_s: float
) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(HEADER + first + b",1,1\n" + second + b",2,3\n")
    assert list(read_trace(path)) == [TraceRequest(0.0, 1, 1), TraceRequest(later_s, 2, 3)]


def test_a_pipe_is_refused_in_words(tmp_path: Path) -> None:
    """As of a shell's ``<(...)``; what is read of it first is gone."""
    reading, writing = os.pipe()
    os.write(writing, AZURE)
    os.close(writing)
    try:
        with pytest.raises(TraceError, match="a pipe cannot be read twice"):
            list(read_trace(Path(f"/dev/fd/{reading}")))
    finally:
        os.close(reading)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TraceError):
            list(read_trace(path))
