"""Trace readers on files in each format, and on the published traces where they are present."""

import gzip
import json
from pathlib import Path

import pytest

from loadgen.errors import TraceError
from loadgen.workload.traces import TraceRequest, read_trace
from tests.loadgen.conftest import shared_data

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109\r\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,0,1087,API log\n"
    "118,GPT-4,417,276,693,API log\n"
)
MOONCAKE = [
    {"timestamp": 3000, "input_length": 1025, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 6500, "input_length": 512, "output_length": 1, "hash_ids": [7]},
]


def write(path: Path, text: str, zipped: bool = False) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_azure_keeps_seven_decimals_and_takes_crlf(tmp_path: Path, zipped: bool) -> None:
    first, second = read_trace(write(tmp_path / "trace.csv", AZURE, zipped))
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 374, 44)
    assert second.arrival_s == pytest.approx(4.3145790, abs=1e-7)


def test_azure_2024_has_offsets_and_whole_seconds(tmp_path: Path) -> None:
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2024-05-10 00:00:00.009930+00:00,21,5"]
    text = "\n".join([*rows, "2024-05-10 00:00:01+00:00,2,5"])
    _, second = read_trace(write(tmp_path / "trace.csv", text))
    assert second.arrival_s == pytest.approx(1 - 0.00993, abs=1e-7)


def test_azure_times_are_of_their_own_zone(tmp_path: Path) -> None:
    rows = ['"TIMESTAMP", "ContextTokens", "GeneratedTokens"', "2024-05-10 00:00:00.5+00:00,21,5"]
    text = "\n".join([*rows, "2024-05-10 01:00:01.75+01:00,2,5", "2024-05-10 01:00:01.75+01:00,3,5"])
    requests = list(read_trace(write(tmp_path / "trace.csv", text)))
    assert [request.arrival_s for request in requests] == [0.0, 1.25, 1.25], "some come at the same time"


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    requests = list(read_trace(write(tmp_path / "trace.csv", BURSTGPT)))
    assert requests == [TraceRequest(0.0, 472, 18), TraceRequest(113.0, 417, 276)]


def test_mooncake_reads_milliseconds_and_blocks(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.jsonl", "\n".join(json.dumps(row) for row in MOONCAKE))
    assert list(read_trace(path)) == [TraceRequest(0.0, 1025, 5, (7, 8, 9)), TraceRequest(3.5, 512, 1, (7,))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("a,b,c\n1,2,3\n", "line 1: not a known trace"),
        ('{"question": "timestamp"}\n', "line 1: not a known trace"),
        (AZURE + "yesterday,1,2\r\n", "line 4: TIMESTAMP 'yesterday' is not a time"),
        (AZURE + "2023-11-16 18:15:51.0,many,2\r\n", "line 4: Expected `int`, got `str` - at `$.contexttokens`"),
        (AZURE + "2023-11-16 18:15:51.0,-3,2\r\n", "line 4: Expected `int` >= 0 - at `$.contexttokens`"),
        (AZURE + f"2023-11-16 18:15:51.0,{10**400},2\r\n", "line 4: Expected `int` <= "),
        (AZURE + "2023-11-16 18:15:51.0,3\r\n", "line 4: 2 fields instead of 3"),
        (AZURE + "2023-11-16 18:15:40.0,3,4\r\n", "line 4: earlier than the line before"),
        (BURSTGPT + "nan,GPT-4,3,4,7,API log\n", "line 5: Expected `float` >= "),
        (json.dumps(MOONCAKE[0]) + "\n{not json\n", "line 2: "),
        (json.dumps(MOONCAKE[0]) + '\n{"timestamp": 9000}\n', "line 2: Object missing required field `input_length`"),
    ],
)
def test_bad_traces_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "trace", text)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        list(read_trace(tmp_path / "missing.csv"))
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(AZURE.encode() * 50)[:60])
    with pytest.raises(TraceError, match=r"broken\.csv\.gz"):
        list(read_trace(broken))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(TraceError, match="not UTF-8"):
        list(read_trace(binary))


@pytest.mark.parametrize(
    ("name", "count", "last_s"),
    [
        ("traces/azure_llm_2023_conv.csv.gz", 19_366, 3_502),
        ("traces/mooncake_fast25_conversation.jsonl.gz", 12_031, 3_537),
    ],
)
def test_published_traces(name: str, count: int, last_s: float) -> None:
    requests = list(read_trace(shared_data(name)))
    assert len(requests) == count
    assert requests[-1].arrival_s == pytest.approx(last_s, abs=1)
    assert all(request.num_prompt_tokens > 0 and request.num_output_tokens > 0 for request in requests)
