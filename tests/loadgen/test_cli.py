"""The command as users run it: a process of its own."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.loadgen.openai_server import OpenAIServer
from tests.programs import Program

WAIT_S = 120.0
StartReplay = Callable[..., "Replay"]


class Replay:
    """``python -m loadgen replay``."""

    def __init__(self, folder: Path, arguments: tuple[str, ...], environ: dict[str, str]) -> None:
        self._printed = folder / "stdout", folder / "stderr"
        stdout, stderr = self._printed
        self._program = Program("loadgen", "replay", *arguments, stdout=stdout, stderr=stderr, env=os.environ | environ)
        self.send_signal = self._program.send_signal

    @property
    def returncode(self) -> int | None:
        return self._program.returncode

    async def ended(self) -> tuple[str, str]:
        """What it has printed on stdout and on stderr."""
        await asyncio.to_thread(self._program.wait, WAIT_S)
        stdout, stderr = (path.read_text() for path in self._printed)
        return stdout, stderr

    def close(self) -> None:
        self._program.kill()


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[StartReplay]:
    """Started, and ended with the test."""
    started: list[Replay] = []

    def start(*arguments: str, **environ: str) -> Replay:
        started.append(Replay(tmp_path, arguments, environ))
        return started[-1]

    yield start
    for each in started:
        each.close()


async def test_json_on_stdout_and_bars_on_stderr(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, prompt_file: Path
) -> None:
    options = ("--duration", "0.5", "--json", "-", "--progress", "--slo", "ttft_p99<=60s", "--offline-max-tokens", "2")
    process = replay("--url", server.url, "--online", str(trace_file), "--offline", str(prompt_file), *options)
    out, err = await process.ended()
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["online"]["completed"], report["partial"]) == (20, False)
    assert "replay: online" in err


async def test_table_on_stdout_and_json_in_a_file(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    process = replay(
        "--url", server.url, "--online", str(trace_file), "--duration", "0.5", "--json", str(file), "--no-progress"
    )
    out, err = await process.ended()
    assert process.returncode == 0
    assert "TTFT ms" in out
    assert err == ""
    assert json.loads(file.read_text())["online"]["requests"] == 20


@pytest.mark.parametrize("file", ["missing/report.json", "."])
async def test_json_that_could_not_be_written_is_refused_before_anything_runs(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, tmp_path: Path, file: str
) -> None:
    process = replay("--url", server.url, "--online", str(trace_file), "--json", str(tmp_path / file))
    _, err = await process.ended()
    assert process.returncode == 2 and "cannot write" in err and not server.trace_bodies


async def test_the_servers_address_may_be_written_as_clients_have_it(
    replay: StartReplay, server: OpenAIServer, trace_file: Path
) -> None:
    url = server.url.removeprefix("http://") + "/v1"
    process = replay("--url", url, "--online", str(trace_file), "--duration", "0.5", "--json", "-", "--no-progress")
    out, err = await process.ended()
    assert process.returncode == 0, err
    assert json.loads(out)["online"]["completed"] == 20


@pytest.mark.parametrize(
    "environ",
    [
        {"SLACKWATER_API_KEY": " the-key\n", "OPENAI_API_KEY": "another"},
        {"SLACKWATER_API_KEY": "", "OPENAI_API_KEY": "the-key"},
    ],
)
async def test_the_api_key_comes_from_the_environment(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, environ: dict[str, str]
) -> None:
    server.api_key = "the-key"
    options = ("--url", server.url, "--online", str(trace_file), "--duration", "0.5", "--json", "-", "--no-progress")
    process = replay(*options, **environ)
    out, err = await process.ended()
    assert process.returncode == 0, err
    assert json.loads(out)["online"]["completed"] == 20


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_cancels_the_batch_and_reports_what_there_is(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, prompt_file: Path, number: signal.Signals, status: int
) -> None:
    server.batch_lines_per_s = 20
    process = replay(
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
    out, err = await process.ended()
    assert process.returncode == status, err
    report = json.loads(out)
    assert report["partial"] is True
    assert any(re.fullmatch(r"replay: stopped after \d+\.\d of its 60 s", note) for note in report["notes"])
    assert "a second signal ends at once" in err
    assert report["online"]["requests"] >= 5
    assert [batch["status"] for batch in server.batches.values()] == ["cancelled"]


@pytest.mark.parametrize(("hung_up", "status"), [(True, 129), (False, 0)])
async def test_the_report_is_kept_whatever_becomes_of_the_terminal(
    server: OpenAIServer, trace_file: Path, tmp_path: Path, hung_up: bool, status: int
) -> None:
    """Who leaves a job behind in the background has no hang-up sent to it."""
    terminal, inside = os.openpty()
    output, json_file = Path(os.ttyname(inside)), tmp_path / "report.json"
    files = ("--online", str(trace_file), "--json", str(json_file))
    arguments = ("replay", "--url", server.url, *files, "--duration", "60" if hung_up else "0.5")
    program = Program("loadgen", *arguments, stdout=output, stderr=output)
    os.close(inside)
    await server.until(lambda: len(server.trace_bodies) >= 5)
    os.close(terminal)
    if hung_up:
        program.send_signal(signal.SIGHUP)
    try:
        assert await asyncio.to_thread(program.wait, WAIT_S) == status
    finally:
        program.kill()
    assert json.loads(json_file.read_text())["partial"] is hung_up


async def test_json_is_written_though_nobody_reads_the_table(
    server: OpenAIServer, trace_file: Path, tmp_path: Path
) -> None:
    pipe, json_file = tmp_path / "stdout", tmp_path / "report.json"
    os.mkfifo(pipe)
    arguments = ("--url", server.url, "--online", str(trace_file), "--duration", "0.5", "--json", str(json_file))
    program = Program("loadgen", "replay", *arguments, stdout=pipe, stderr=Path(os.devnull))
    try:
        os.close(await asyncio.to_thread(os.open, pipe, os.O_RDONLY))
        await asyncio.to_thread(program.wait, WAIT_S)
    finally:
        program.kill()
    assert json.loads(json_file.read_text())["online"]["completed"] == 20


async def test_a_server_that_refuses_a_later_phase_leaves_what_was_measured(
    replay: StartReplay, server: OpenAIServer, trace_file: Path, prompt_file: Path, tmp_path: Path
) -> None:
    server.failing_creations = 1
    files = ("--online", str(trace_file), "--offline", str(prompt_file))
    json_file = tmp_path / "report.json"
    options = ("--baseline", "--duration", "0.5", "--json", str(json_file), "--no-progress")
    process = replay("--url", server.url, *files, *options)
    out, err = await process.ended()
    assert process.returncode == 2 and "answered 429: too much to do" in err
    assert "(partial)" in out and re.search(r"TTFT ms +-.*\n +online only +\d", out)
    report = json.loads(json_file.read_text())
    assert report["partial"] is True and "offline only: stopped before its window began" in report["notes"]
    assert (report["baseline"]["online"]["completed"], report["online"]) == (20, None)
    assert server.files == {}


async def test_a_signal_during_a_stall_counts_the_unfinished(
    replay: StartReplay, server: OpenAIServer, trace_file: Path
) -> None:
    process = replay("--url", server.url, "--online", str(trace_file), "--duration", "60", "--json", "-")
    await server.until(lambda: bool(server.trace_bodies))
    server.gate.clear()
    await server.until(lambda: server.num_active >= 3)
    process.send_signal(signal.SIGINT)
    out, _ = await process.ended()
    report = json.loads(out)
    assert process.returncode == 130
    assert report["online"]["unfinished"] >= 3


async def test_a_file_s_name_need_not_be_utf_8(replay: StartReplay, server: OpenAIServer, trace_file: Path) -> None:
    named = os.fsdecode(os.fsencode(trace_file.parent) + b"/tr\xe4ce.csv")
    await asyncio.to_thread(trace_file.rename, named)
    process = replay("--url", server.url, "--online", named, "--duration", "0.5", "--json", "-")
    out, err = await process.ended()
    assert process.returncode == 0, err
    assert json.loads(out)["run"]["trace"] == f"{trace_file.parent}/tr\N{REPLACEMENT CHARACTER}ce.csv"


async def test_a_timeout_that_no_timer_takes_is_refused(replay: StartReplay, trace_file: Path) -> None:
    process = replay("--online", str(trace_file), "--timeout", "inf")
    _, err = await process.ended()
    assert process.returncode == 2 and "--timeout" in err and "Traceback" not in err


async def test_nothing_done_is_status_1(replay: StartReplay, server: OpenAIServer, trace_file: Path) -> None:
    server.fail_with = 503
    process = replay("--url", server.url, "--online", str(trace_file), "--duration", "0.5")
    out, _ = await process.ended()
    assert process.returncode == 1
    assert "online requests failed: 503: out of order" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to send"),
        (["--online", "TRACE", "--qps", "0"], "--qps must be above 0"),
        (["--online", "TRACE", "--start", "9999"], "no request in the 120 s from 9999 s"),
        (["--online", "missing.csv"], "missing.csv: No such file"),
        (["--online", "TRACE", "--filler", "missing.txt"], "missing.txt: No such file"),
        (["--online", "TRACE", "--slo", "ttft<=1"], "is not understood"),
        (["--online", "TRACE", "--slo", "ttft_p99<=1x"], "give --baseline too"),
        (["--online", "TRACE", "--url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["--online", "TRACE", "--url", "ftp://x"], "cannot reach ftp://x: write http://HOST:PORT, or https"),
        (["--online", "TRACE", "--url", "x:99999"], "cannot reach http://x:99999: write http://HOST:PORT, or https"),
        (["--offline", "TRACE"], "no prompt column"),
        (["--online", "TRACE", "--offline-extra", "[1]"], "'[1]' is no JSON object"),
    ],
)
async def test_bad_input_is_one_line_and_status_2(
    replay: StartReplay, trace_file: Path, arguments: list[str], message: str
) -> None:
    process = replay(*(str(trace_file) if argument == "TRACE" else argument for argument in arguments))
    out, err = await process.ended()
    assert process.returncode == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
