"""Overload and long runs: what they make of figures that are known, and both, shortly, on a whole stack."""

import asyncio
import ctypes
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from rich.console import Console

from benchmarks.harness.command import DEFAULT_MODEL, keep_all
from benchmarks.harness.kept import Place
from benchmarks.harness.local_stack import UP_LOG
from benchmarks.harness.page import EXIT_INTERRUPTED
from benchmarks.harness.stack import wait_until
from benchmarks.harness.table import Result, Results
from benchmarks.reliability.kinds.looking import Viewers
from benchmarks.reliability.kinds.offline import Batches, BatchFile
from benchmarks.reliability.kinds.online import Requests
from benchmarks.reliability.kinds.tally import Tally
from benchmarks.reliability.overload import StackPlan, overload
from benchmarks.reliability.overload_report import report as overload_report
from benchmarks.reliability.overload_run import OverloadRun, Plan
from benchmarks.reliability.sampling import SUPERVISOR, Held, ProcessSample, StackSample, read_samples
from benchmarks.reliability.slopes import NUM_BLOCKS, slope
from benchmarks.reliability.soak import OBJECTS, SAMPLES, Run, soak
from benchmarks.reliability.soak_report import FLAT, SHORT, lines_of, report, restarts, verdict
from benchmarks.reliability.tables import end_cut_short, tally_rows, with_file
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from loadgen.errors import ServerError
from loadgen.progress import bars_on
from tests.shared.bus.servers import until

MIB_AT_MOST = 1024.0  # of one process: several times what it has, and less than what an unbounded queue comes to
PROCESSES = {"nats-server", "predictor", "profiler", "offline-queue", "executor-0", "gateway", SUPERVISOR}
BARS = Console(quiet=True)
ROOT = Path(__file__).parents[2]


def test_a_slope_is_found_in_noise_and_its_error_covers_the_truth() -> None:
    rng = random.Random(7)
    times_s = [10.0 * number for number in range(720)]
    found = slope(times_s, [100 + 12 * time_s / 3600 + rng.gauss(0, 1) for time_s in times_s])
    assert found is not None and abs(found.per_hour - 12) < 4 * found.error < 4
    assert found.verdict(1.0) == "GROWS"
    assert slope(times_s[: 3 * NUM_BLOCKS - 1], times_s) is None


def test_noise_that_lasts_does_not_pass_for_growth() -> None:
    """A random walk that is drawn back to its mean within minutes: neighbouring samples say the same."""
    grown = 0
    for seed in range(40):
        rng, value, values = random.Random(seed), 0.0, []
        for _ in range(1440):
            value += rng.gauss(0, 1) - 0.05 * value
            values.append(100 + value)
        found = slope([5.0 * number for number in range(1440)], values)
        assert found is not None
        grown += found.verdict(0.0) == "GROWS"
    assert grown <= 2


def test_what_is_too_uncertain_is_not_called_flat() -> None:
    rng = random.Random(3)
    times_s = [10.0 * number for number in range(96)]
    found = slope(times_s, [rng.gauss(100, 50) for _ in times_s])
    assert found is not None and found.verdict(1.0) == "cannot be told yet"
    even = slope(times_s, [5.0] * 96)
    assert even is not None and (even.per_hour, even.mean, even.verdict(0.0)) == (0.0, 5.0, FLAT)


def test_a_run_that_is_cut_short_is_shown_and_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def results() -> Results:
        yield {"n": "1"}
        end_cut_short(signal.SIGINT)

    with pytest.raises(typer.Exit) as ended:
        keep_all(Place.of("page/table"), results(), 7, tmp_path)
    shown = capsys.readouterr()
    assert ended.value.exit_code == EXIT_INTERRUPTED and not [*tmp_path.iterdir()]
    assert "| 1 |" in shown.out and shown.err == "cut short: what is shown is not kept\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["overload", "soak"])
def test_ctrl_c_keeps_no_half_of_a_run(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"benchmarks.reliability.{name}", "--out", "out", "--keep", "page/table"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "out" / UP_LOG).exists)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == EXIT_INTERRUPTED and "cut short: what is shown is not kept" in errors
    assert not (tmp_path / "docs").exists()


def stack_sample(number: int, gateway_pid: int, rss_mib: float) -> StackSample:
    processes = {
        "gateway": ProcessSample(gateway_pid, rss_mib, 20, 10, 4, 1.0, Held(1000, 20.0, 5.0)),
        "nats-server": ProcessSample(7, 40.0, 20, 10, 9, 1.0),
    }
    return StackSample(60.0 * number, processes, {"KV_x": (1000, 10, 2)}, 5.0, load=1.0)


def test_what_grows_is_named_and_a_restart_is_told(tmp_path: Path) -> None:
    """Ten hours, a sample a minute; the gateway is another process from the second hour on."""
    samples = [stack_sample(number, 5 if number < 60 else 6, 100 + number / 6) for number in range(600)]
    words = verdict(lines_of(samples), restarts(samples))
    assert words == "All else is flat. GROWS: memory MiB of gateway. gateway was restarted 1 times."
    *rows, _, told, result = with_file(report(samples, 60.0), tmp_path / "soak.png")
    assert told == words and isinstance(result, Result)
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    gateway = next(row for row in rows if isinstance(row, dict) and row["of"] == "gateway")
    assert gateway["memory MiB"].endswith("+10.00 ± 0.00, GROWS")
    assert {line.verdict for line in lines_of(samples[:5])} == {SHORT}
    assert list(report([], 0.0)) == ["Nothing was seen."]


async def test_refusals_are_told_from_failures_and_by_whether_they_say_when_to_come_back() -> None:
    tally = Tally("streams")
    records = (
        RequestRecord(0.0, finished_s=1.0, status=200),
        RequestRecord(0.0, finished_s=1.0, status=503, error="503: 17 wait", retry_after_s=2.0),
        RequestRecord(0.0, finished_s=1.0, status=429, error="429: no room"),
        RequestRecord(0.0, finished_s=1.0, status=200, error="the stream ended before its last event"),
    )
    for record in records:
        tally.note(record)

    async def refuse() -> None:
        raise ServerError("GET /x answered 503: 4 files", 503, 30.0)

    assert await tally.take(refuse()) is None
    assert await tally.take(asyncio.sleep(0, "answer")) == "answer"
    assert (tally.num_sent, tally.num_served, tally.num_refused, tally.num_failed) == (6, 2, 3, 1)
    assert tally.without_retry == {"N: no room": 1} and tally.retry_after_s == [2.0, 30.0]


def test_whatever_was_sent_is_in_one_column_of_the_table() -> None:
    """Also what was under way when its clients left."""
    tally = Tally("viewers", num_sent=1010, num_served=7)
    tally.refused["503"] += 999
    tally.failed["OSError"] += 1
    (row, *words) = tally_rows([tally])
    assert isinstance(row, dict) and row["sent"] == "1,010" and row["cut off at the end"] == "3"
    assert words == ["viewers, refused 999 times: 503", "viewers, failed 1 times: OSError"]


async def test_a_batch_that_was_taken_and_fails_is_in_the_column_of_failures_alone(tmp_path: Path) -> None:
    async with OpenAIClient("http://127.0.0.1:9", 1) as client:
        batches = Batches(client, BatchFile(Requests("model", 4, 2), 1, tmp_path))
        failed = {"status": "failed", "request_counts": {"completed": 0}}
        await batches.tally.take(asyncio.sleep(0, failed))
        await batches._follow(failed)
    batches.tally.fail("BusError")
    row, *_ = tally_rows([batches.tally])
    assert isinstance(row, dict)
    assert [row[name] for name in ("sent", "served", "failed", "cut off at the end")] == ["2", "0", "2", "0"]


async def test_viewers_that_are_there_at_once_are_each_counted() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n")
        await reader.read()  # until the viewer goes
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1")
    async with server:
        viewers = Viewers(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", num_viewers=5, stay_s=0.4)
        running = asyncio.create_task(viewers.run())
        await until(lambda: viewers.tally.num_served > 10)
        running.cancel()
        await asyncio.wait((running,))
    assert viewers.tally.num_sent - 5 * 3 <= viewers.tally.num_served <= viewers.tally.num_sent  # 5 were cut short
    assert not viewers.tally.num_failed


def check_processes(samples: Sequence[StackSample]) -> None:
    """All there, none restarted, none of more than it may have."""
    assert set(samples[-1].processes) == PROCESSES and set(restarts(samples).values()) == {0}
    for sample in samples:
        for name, process in sample.processes.items():
            assert process.rss_mib < MIB_AT_MOST, (name, process)


SLOW_STACK = StackPlan("sim", ["ttft_p99<=2s"], {"SLACKWATER_MAX_NUM_SEQS": "4", "SLACKWATER_SIM_TIME_SCALE": "4"})


SHORT_PLAN = Plan(
    DEFAULT_MODEL,
    num_prompt_tokens=50,
    num_output_tokens=20,
    num_clients=6,
    capacity_s=5.0,
    steady_s=3.0,
    overload_s=12.0,
    num_lines=100,
    sample_s=1.0,
)


@pytest.mark.slow
async def test_ten_times_the_load_is_refused_in_words_and_soon_forgotten(tmp_path: Path) -> None:
    """What a client sees, and what the processes come to."""
    runs: list[OverloadRun] = []
    with bars_on(BARS) as bars:
        await overload(runs, SHORT_PLAN, SLOW_STACK, tmp_path, bars)
    (run,) = runs
    assert run.capacity > 0 and run.recovered_s is not None, run.probes[-3:]
    by_name = {tally.name: tally for tally in run.stages[-1].tallies}
    streams = by_name["streams"]
    assert streams.num_served > 0 and streams.num_refused > streams.num_served
    assert not streams.failed and not by_name["connections"].failed and not by_name["a light client"].failed
    assert all(not tally.without_retry for tally in by_name.values()), by_name
    assert all(not tally.refused for tally in (by_name["lists"], by_name["viewers"])), "who only looks is served"
    check_processes(run.sampler.samples)
    before, after = run.sampler.samples[0].processes["gateway"], run.sampler.samples[-1].processes["gateway"]
    assert after.num_files <= before.num_files + 50, "connections of those who left are open yet"
    text = "\n".join(map(str, overload_report(run, ["ttft_p99<=2s"], 1.0)))
    assert "As before" in text and "ttft_p99<=2s, 10 times that" in text


@pytest.mark.slow
async def test_a_mixed_load_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.reliability.soak.PERIOD_S", 2.0)
    run = Run(tmp_path, 24.0 / 3600, rate=6.0)
    await soak(run, is_traced=False, objects_s=2.0, console=BARS)
    by_name = {kind.tally.name: kind.tally for kind in run.kinds}
    assert not any(tally.failed or tally.refused for tally in by_name.values()), by_name
    for name in ("streams", "flex", "uploads", "lists", "leavers"):
        assert by_name[name].num_served > 0, name
    samples = read_samples(tmp_path / SAMPLES)
    check_processes(samples)
    held = [sample.processes["gateway"].held for sample in samples]
    assert any(each is not None and each.blocks > 10_000 for each in held), "blocks are not counted"
    if hasattr(ctypes.CDLL(None), "malloc_info"):
        assert any(each is not None and 0 < each.used_mib < each.heap_mib for each in held)
    assert list((tmp_path / OBJECTS).glob("*.jsonl")) and (tmp_path / "logs" / "gateway.log").exists()
    assert math.isfinite(samples[-1].stream_mib) and samples[-1].num_consumers > 0
