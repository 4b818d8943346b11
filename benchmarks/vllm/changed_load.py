"""A stack that is as it comes, after idle time and when the load changes from one moment to the next.

``slackwater up`` stands idle, then has online requests beside a batch; and, again and again, a tenth of that rate and
the whole of it, one right after the other. What online users got is told over what the same requests got without a
batch, which is measured after it, so that it teaches the stack nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command import Results, Row, benchmark, formatted, model_folder
from benchmarks.vllm.comparison import offline_of, online_of
from benchmarks.vllm.servers import ON_TORCH, ON_VLLM, Server, Slackwater
from benchmarks.vllm.workload import Setting, Workload
from loadgen.cli import is_shown
from loadgen.errors import ServerError
from loadgen.progress import ReplayProgress, progress_on
from loadgen.replay import ReplayPlan
from loadgen.report.metrics import harvest
from loadgen.report.report import OfflineReport, OnlineReport, Report
from shared.settings.command_options import one_of

SMALL = 0.1  # of the rate
SYSTEMS = {system.engine: system for system in (ON_TORCH, ON_VLLM)}


@dataclass(frozen=True, slots=True)
class Beside:
    """Online requests beside a batch, and the same without."""

    name: str
    rate: float
    online: OnlineReport
    offline: OfflineReport
    alone: OnlineReport

    def row(self, offline_alone: OfflineReport) -> Row:
        """``offline_alone``: of a batch alone. No harvest where online requests left no time idle."""
        now, alone = self.online, self.alone
        if now.ttft_ms is None or alone.ttft_ms is None or now.tbt_ms is None or alone.tbt_ms is None:
            raise ServerError(f"{self.name}: no online request was answered")
        harvested = harvest(self.offline, offline_alone, 1.0 - (alone.under_way_share or 0.0))
        ratios = {"TTFT p99": now.ttft_ms.p99 / alone.ttft_ms.p99, "TBT mean": now.tbt_ms.mean / alone.tbt_ms.mean}
        return {
            "online work": self.name,
            "requests/s": f"{self.rate:g}",
            "requests": f"{now.completed}, {now.errors} failed" if now.errors else str(now.completed),
            **formatted(".0f", {"TTFT p99 ms": now.ttft_ms.p99}),
            **formatted(".1f", {"TBT mean ms": now.tbt_ms.mean}),
            **formatted(".2f", {f"{name}, of online alone": ratio for name, ratio in ratios.items()}),
            **formatted(".1f", {"offline tokens/s": self.offline.total_tokens_per_s or 0.0}),
            "harvest": "" if harvested is None else f"{harvested:.2f}",
        }


@dataclass(frozen=True, slots=True)
class Runs:
    """Of one server."""

    workload: Workload
    server: Server
    progress: ReplayProgress
    tell: Callable[[str], None]  # of online requests that failed

    async def beside(self, changes: Sequence[tuple[str, float]]) -> list[Beside]:
        """Beside a batch at each rate, one right after the other; then without, in the same order."""
        together = [await self._run(name, self.workload.together(rate)) for name, rate in changes]
        alone = [await self._run(f"{name}, alone", self.workload.online_only(rate)) for name, rate in changes]
        return [
            Beside(name, rate, online_of(report), offline_of(report), online_of(without))
            for (name, rate), report, without in zip(changes, together, alone, strict=True)
        ]

    async def offline_alone(self) -> OfflineReport:
        report = offline_of(await self._run("batch alone", self.workload.offline_only()))
        if not report.total_tokens_per_s:
            raise ServerError("the batch alone came to nothing")
        return report

    async def _run(self, name: str, plan: ReplayPlan) -> Report:
        replayed = await self.server.replayed(plan, None, self.progress, name)
        if replayed.failed:
            self.tell(f"{name}: {replayed.what_failed}")
        return replayed.report


async def rows(
    workload: Workload, system: Slackwater, rate: float, idle_minutes: float, repeats: int, folder: Path
) -> list[Row]:
    """Raises LoadgenError."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with progress_on(console, is_shown(None)) as progress:
        async with system.serving(workload.setting, workload.model_path, folder) as server:
            runs = Runs(workload, server, progress, lambda line: console.print(line, markup=False))
            await asyncio.sleep(60 * idle_minutes)
            results = await runs.beside([(f"after {idle_minutes:g} idle minutes", rate)])
            for _ in range(repeats):
                results += await runs.beside([("a tenth", SMALL * rate), ("ten times that, at once", rate)])
            offline_alone = await runs.offline_alone()
    return [result.row(offline_alone) for result in results]


@benchmark
def main(
    setting: Setting,
    rate: Annotated[float, typer.Option(min=0.01, help="Online requests/s, of which there is a tenth meanwhile.")],
    idle_minutes: Annotated[float, typer.Option(min=0.0)] = 60.0,
    repeats: Annotated[int, typer.Option(min=1, help="Changes of the load.")] = 3,
    engine: Annotated[str, typer.Option(callback=one_of("engine", SYSTEMS), help=" or ".join(SYSTEMS) + ".")] = "torch",
) -> Results:
    yield f"slackwater up --engine {engine}, nothing else set that bears on scheduling; {setting.describe()}"
    with TemporaryDirectory() as folder:
        workload = Workload(setting, model_folder(setting.model))
        yield from asyncio.run(rows(workload, SYSTEMS[engine], rate, idle_minutes, repeats, Path(folder)))
