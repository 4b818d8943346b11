"""Hours of steady mixed load on a whole stack, and whether anything of it grows: ``python -m
benchmarks.reliability.soak --hours 2 --out FOLDER``.

``slackwater up`` with the simulated engine; streams, flex requests, batches that are followed or cancelled and whose
files are deleted, uploads, lists, keys that are made and revoked, clients that leave at once or do not read, dashboards
that are opened and closed, and an executor that joins, changes its pool, is drained and ends. Samples are in FOLDER as
they come, so a run that is cut short is reported too, though ``--keep`` does not keep it; ``--report`` makes table and
picture of a run anew.
"""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command import DEFAULT_MODEL, Results, benchmark, model_folder
from benchmarks.harness.local_stack import local_stack
from benchmarks.reliability.kinds.changes import ExecutorChanges, KeyChanges
from benchmarks.reliability.kinds.looking import Lists, Viewers
from benchmarks.reliability.kinds.offline import Batches, BatchFile, Flex, Uploads
from benchmarks.reliability.kinds.online import Leavers, OpenStreams, Requests
from benchmarks.reliability.kinds.slow_readers import SlowReaders
from benchmarks.reliability.kinds.tally import Kind
from benchmarks.reliability.sampling import Sampler, StackSample, read_samples
from benchmarks.reliability.soak_report import report
from benchmarks.reliability.tables import end_cut_short, tally_rows, with_file
from loadgen.client.openai_client import OpenAIClient
from loadgen.progress import bars_on
from loadgen.stopping import run_until_signalled
from services.local.stack.data_dir import DataDir

SAMPLES, OBJECTS = "samples.jsonl", "objects"
INSIDE = Path(__file__).parent / "inside"
ENGINE = {"engine": "sim"}
PERIOD_S = 10.0


def kinds(data_dir: DataDir, client: OpenAIClient, rate: float, environ: dict[str, str]) -> list[Kind]:
    """All that go on at once; ``rate``: streams a second, and the others in proportion."""
    url = data_dir.read_stack().http_url

    def requests(name: str, num_output_tokens: int = 40) -> Requests:
        return Requests(DEFAULT_MODEL, 100, num_output_tokens, f"soak-{name}-{time.time()}")

    executor = {"engine": "sim", "model-path": model_folder(), "log-level": "info"}
    return [
        OpenStreams(client, requests("streams"), rate),
        Flex(client, requests("flex"), rate / 6),
        Batches(client, BatchFile(requests("batches"), 60, data_dir.path), num_clients=2, period_s=30 / rate),
        Uploads(client, BatchFile(requests("uploads"), 40, data_dir.path), period_s=15 / rate),
        Lists(client, rate / 3),
        Leavers(client, requests("leavers"), rate / 4),
        SlowReaders(url, requests("slow", 2000), 2, 40.0),
        Viewers(url, 2, 60.0),
        KeyChanges(data_dir, requests("keys"), 60 / rate),
        ExecutorChanges(data_dir, client, executor, environ, 180 / rate),
    ]


async def soak(run: "Run", is_traced: bool, objects_s: float, console: Console) -> None:
    """Until its time is over or it is cancelled; samples and the logs of the stack are in the run's folder then."""
    objects = run.folder / OBJECTS
    objects.mkdir(exist_ok=True)
    path = os.pathsep.join([str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {"PYTHONPATH": path, "OBJECTS_FOLDER": str(objects), "OBJECTS_PERIOD_S": str(objects_s)}
    environ |= {"OBJECTS_TRACED": "1"} if is_traced else {}
    async with local_stack("soak", run.folder, ENGINE, environ) as data_dir:
        try:
            async with OpenAIClient(data_dir.read_stack().http_url, 3600.0) as client:
                run.kinds = kinds(data_dir, client, run.rate, environ)
                await _go_on(run, Sampler(data_dir, run.folder / SAMPLES, objects), console)
        finally:
            shutil.copytree(data_dir.log("gateway").parent, run.folder / "logs", dirs_exist_ok=True)


async def _go_on(run: "Run", sampler: Sampler, console: Console) -> None:
    start_s = time.monotonic()
    with bars_on(console) as bars, contextlib.suppress(TimeoutError):
        bar = bars.add_task("minutes", total=round(60 * run.hours), facts="")

        def tell(sample: StackSample) -> None:
            gateway = sample.processes.get("gateway")
            memory = f"gateway {gateway.rss_mib:.0f} MiB, " if gateway else ""
            served = sum(kind.tally.num_served for kind in run.kinds)
            failed = sum(kind.tally.num_failed for kind in run.kinds)
            facts = f"{memory}{served} served, {failed} failed"
            bars.update(bar, completed=round((time.monotonic() - start_s) / 60), facts=facts)

        async with asyncio.timeout(run.hours * 3600), asyncio.TaskGroup() as tasks:
            tasks.create_task(sampler.run(PERIOD_S, tell))
            for kind in run.kinds:
                tasks.create_task(kind.run())


@dataclass(slots=True)
class Run:
    """``rate``: streams a second."""

    folder: Path
    hours: float
    rate: float
    kinds: Sequence[Kind] = ()


@benchmark
def main(
    out: Annotated[Path, typer.Option(help="A folder for samples, logs, table and picture.", file_okay=False)],
    hours: Annotated[
        float, typer.Option(help="How long; cut short by Ctrl-C, it reports what there is, and keeps nothing.")
    ] = 2.0,
    rate: Annotated[float, typer.Option(help="Streams a second; the other kinds are in proportion.")] = 3.0,
    warm_up_min: Annotated[float, typer.Option(help="Minutes at the beginning that do not count.")] = 15.0,
    objects_s: Annotated[float, typer.Option(help="Seconds between two counts of Python's objects.")] = 120.0,
    trace: Annotated[bool, typer.Option(help="Note where memory was asked for too; slows the stack down.")] = False,
    report_only: Annotated[bool, typer.Option("--report", help="Only table and picture of the run in FOLDER.")] = False,
) -> Results:
    stopped_by = None
    if not report_only:
        out.mkdir(parents=True, exist_ok=True)
        (out / SAMPLES).unlink(missing_ok=True)
        shutil.rmtree(out / OBJECTS, ignore_errors=True)
        run = Run(out, hours, rate)
        stopped_by = asyncio.run(run_until_signalled(soak(run, trace, objects_s, Console(stderr=True))))
        yield from tally_rows([kind.tally for kind in run.kinds])
    samples = read_samples(out / SAMPLES) if (out / SAMPLES).exists() else []
    yield from with_file(report(samples, warm_up_min), out / "soak.png")
    end_cut_short(stopped_by)
