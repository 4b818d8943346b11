"""Ten times what a stack can do, for ten minutes: ``python -m benchmarks.reliability.overload --out FOLDER``.

``slackwater up`` with an engine that is slow enough to be the limit. Its capacity is measured with a closed loop, then
80% of that for a minute, then ``--times`` as many streams a second (open loop) together with as many more connections
that come back when they are told to, flex requests, large batches, uploads, lists, clients that leave at once, clients
that do not read, dashboards, and one client with a key of its own that has one request at a time; then nothing, and
small requests until they are served as before.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from benchmarks.harness.command import DEFAULT_MODEL, Results, benchmark
from benchmarks.harness.local_stack import local_stack
from benchmarks.reliability.overload_report import report
from benchmarks.reliability.overload_run import OverloadRun, Plan
from benchmarks.reliability.tables import end_cut_short, with_file
from loadgen.progress import bars_on
from loadgen.stopping import run_until_signalled
from shared.process.file_limit import raise_file_limit

TICK_S = 1.0
ENGINES = {  # settings of the executor in which the engine is what is short, not the machine that all of this runs on
    "sim": {"SLACKWATER_MAX_NUM_SEQS": "12"},
    "torch": {"SLACKWATER_MAX_NUM_SEQS": "8"},
}


@dataclass(frozen=True, slots=True)
class StackPlan:
    """``slo``: that it is to keep; ``environ``: further settings."""

    engine: str
    slo: Sequence[str]
    environ: Mapping[str, str]


async def overload(runs: list[OverloadRun], plan: Plan, stack: StackPlan, out: Path, bars: Progress) -> None:
    """Fills a run of its own, the last of ``runs``."""
    options = {"engine": stack.engine, "slo": ",".join(stack.slo)}
    async with local_stack("overload", out, options, stack.environ) as data_dir:
        stages = Stages(bars)
        run = OverloadRun(plan, data_dir, out / f"{stack.engine}.jsonl", stages.begin)
        runs.append(run)
        ticking = asyncio.create_task(stages.tick(run))
        try:
            await run.run()
        finally:
            ticking.cancel()
            shutil.copytree(data_dir.log("gateway").parent, out / f"{stack.engine}_logs", dirs_exist_ok=True)


class Stages:
    """A bar of seconds for the stage that is under way."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._bar: TaskID | None = None
        self._start_s = 0.0

    def begin(self, name: str, seconds: float) -> None:
        if self._bar is not None:
            self._bars.stop_task(self._bar)
        self._bar, self._start_s = self._bars.add_task(name, total=round(seconds), facts=""), time.monotonic()

    async def tick(self, run: OverloadRun) -> None:
        """Until it is cancelled."""
        while True:
            if self._bar is not None:
                tallies = run.stages[-1].tallies if run.stages else []
                served, refused = sum(t.num_served for t in tallies), sum(t.num_refused for t in tallies)
                seconds = round(time.monotonic() - self._start_s)
                self._bars.update(self._bar, completed=seconds, facts=f"{served} served, {refused} refused")
            await asyncio.sleep(TICK_S)


@benchmark
def main(
    out: Annotated[Path, typer.Option(help="A folder for samples, logs and the picture.", file_okay=False)],
    minutes: Annotated[float, typer.Option(help="Of the overload.")] = 10.0,
    times: Annotated[float, typer.Option(help="Of the capacity, in requests a second and in connections.")] = 10.0,
    engine: Annotated[str, typer.Option(help="sim or torch.")] = "sim",
    slo: Annotated[list[str], typer.Option(help="That the stack is to keep.")] = ["ttft_p99<=10s", "tbt_p99<=1s"],  # noqa: B006
    time_scale: Annotated[float, typer.Option(help="How many times longer a simulated step takes.")] = 8.0,
    prompt_tokens: Annotated[int, typer.Option(help="Of a request, in the mean.")] = 200,
    output_tokens: Annotated[int, typer.Option(help="Of an answer, in the mean.")] = 50,
    clients: Annotated[int, typer.Option(help="Of the closed loop by which the capacity is measured.")] = 16,
    lines: Annotated[int, typer.Option(help="Of each batch and upload.")] = 2000,
) -> Results:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{engine}.jsonl").unlink(missing_ok=True)
    raise_file_limit()
    plan = Plan(
        DEFAULT_MODEL,
        num_prompt_tokens=prompt_tokens,
        num_output_tokens=output_tokens,
        num_clients=clients,
        overload_s=60 * minutes,
        times=times,
        num_lines=lines,
    )
    runs: list[OverloadRun] = []
    before = os.getloadavg()[0]
    with bars_on(Console(stderr=True)) as bars:
        stopped_by = asyncio.run(
            run_until_signalled(
                overload(
                    runs,
                    plan,
                    StackPlan(engine, slo, ENGINES[engine] | {"SLACKWATER_SIM_TIME_SCALE": f"{time_scale:g}"}),
                    out,
                    bars,
                )
            )
        )
    for run in runs:
        yield from with_file(report(run, slo, before), out / f"overload_{engine}.png")
    end_cut_short(stopped_by)
