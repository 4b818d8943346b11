"""The command as users run it: a process of its own."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.loadgen.openai_server import OpenAIServer


async def replay(*arguments: str, **environ: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "loadgen",
        "replay",
        *arguments,
        env=os.environ | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_json_on_stdout_and_bars_on_stderr(server: OpenAIServer, trace_file: Path, prompt_file: Path) -> None:
    options = ("--duration", "0.5", "--json", "-", "--progress", "--slo", "ttft_p99<=60s", "--offline-max-tokens", "2")
    process = await replay("--url", server.url, "--online", str(trace_file), "--offline", str(prompt_file), *options)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    report = json.loads(out)
    assert (report["online"]["completed"], report["partial"]) == (20, False)
    assert "replay: online" in err.decode()


async def test_table_on_stdout_and_json_in_a_file(server: OpenAIServer, trace_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    process = await replay(
        "--url", server.url, "--online", str(trace_file), "--duration", "0.5", "--json", str(file), "--no-progress"
    )
    out, err = await process.communicate()
    assert process.returncode == 0
    assert "TTFT ms" in out.decode()
    assert err == b""
    assert json.loads(file.read_text())["online"]["requests"] == 20


@pytest.mark.parametrize(
    "environ",
    [
        {"SLACKWATER_API_KEY": " the-key\n", "OPENAI_API_KEY": "another"},
        {"SLACKWATER_API_KEY": "", "OPENAI_API_KEY": "the-key"},
    ],
)
async def test_the_api_key_comes_from_the_environment(
    server: OpenAIServer, trace_file: Path, environ: dict[str, str]
) -> None:
    server.api_key = "the-key"
    options = ("--url", server.url, "--online", str(trace_file), "--duration", "0.5", "--json", "-", "--no-progress")
    process = await replay(*options, **environ)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    assert json.loads(out)["online"]["completed"] == 20


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_cancels_the_batch_and_reports_what_there_is(
    server: OpenAIServer, trace_file: Path, prompt_file: Path, number: signal.Signals, status: int
) -> None:
    server.batch_lines_per_s = 20
    process = await replay(
        "--url",
        server.url,
        "--online",
        str(trace_file),
        "--offline",
        str(prompt_file),
        "--duration",
        "60",
        "--json",
        "-",
    )
    await server.until(lambda: len(server.trace_bodies) >= 5)
    process.send_signal(number)
    out, err = await process.communicate()
    assert process.returncode == status, err.decode()
    report = json.loads(out)
    assert report["partial"] is True
    assert report["online"]["requests"] >= 5
    assert [batch["status"] for batch in server.batches.values()] == ["cancelled"]


async def test_a_signal_during_a_stall_counts_the_unfinished(server: OpenAIServer, trace_file: Path) -> None:
    process = await replay("--url", server.url, "--online", str(trace_file), "--duration", "60", "--json", "-")
    await server.until(lambda: bool(server.trace_bodies))
    server.gate.clear()
    await server.until(lambda: server.num_active >= 3)
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    report = json.loads(out)
    assert process.returncode == 130
    assert report["online"]["unfinished"] >= 3


async def test_nothing_done_is_status_1(server: OpenAIServer, trace_file: Path) -> None:
    server.fail_with = 503
    process = await replay("--url", server.url, "--online", str(trace_file), "--duration", "0.5")
    out, _ = await process.communicate()
    assert process.returncode == 1
    assert "online requests failed: 503: out of order" in out.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to send"),
        (["--online", "TRACE", "--qps", "0"], "--qps must be above 0"),
        (["--online", "TRACE", "--start", "9999"], "no request in the 120 s from 9999 s"),
        (["--online", "missing.csv"], "missing.csv: No such file"),
        (["--online", "TRACE", "--slo", "ttft<=1"], "is not understood"),
        (["--online", "TRACE", "--slo", "ttft_p99<=1x"], "give --baseline too"),
        (["--online", "TRACE", "--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["--offline", "TRACE"], "no prompt column"),
        (["--online", "TRACE", "--offline-extra", "[1]"], "'[1]' is no JSON object"),
    ],
)
async def test_bad_input_is_one_line_and_status_2(trace_file: Path, arguments: list[str], message: str) -> None:
    process = await replay(*(str(trace_file) if argument == "TRACE" else argument for argument in arguments))
    out, err = await process.communicate()
    assert process.returncode == 2
    assert out == b""
    assert message in err.decode()
    assert err.decode().count("\n") == 1
