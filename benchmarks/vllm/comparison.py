"""The runs of a comparison: which, in which order, on which server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from statistics import fmean

import msgspec

from benchmarks.harness.page import FigureProgress
from benchmarks.vllm.run_store import RunStore
from benchmarks.vllm.search import KnobSearch, Point, nearest, rate_for
from benchmarks.vllm.servers import Knob, Server, System
from benchmarks.vllm.workload import Workload
from loadgen.client.openai_client import OpenAIClient
from loadgen.errors import ServerError
from loadgen.progress import RenamedProgress
from loadgen.replay import Replay, ReplayPlan
from loadgen.report.metrics import LATENCIES
from loadgen.report.report import OfflineReport, OnlineReport, Report, Summary
from loadgen.report.slo import parse_slo
from services.profiler.slo.search import TrialOutcome
from shared.protocol.slo_profile import Trial

RATE_TRIES, CLOSE_SHARE = 3, 0.05
REQUEST_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class CoRun:
    """Online and offline work together, with one setting of the system's knobs."""

    values: tuple[float, ...]  # of each knob
    online: OnlineReport
    offline: OfflineReport
    trial: Trial


@dataclass(slots=True)
class Cell:
    """One system under one online load. ``share``: of the time that the load is wanted to keep a server busy."""

    system: str
    knobs: tuple[str, ...]
    share: float
    rate: float
    alone: OnlineReport  # the mean of the online-only runs
    offline_alone: OfflineReport
    runs: list[CoRun] = field(default_factory=list)  # in the order in which they ran

    @property
    def best(self) -> CoRun | None:
        """The most offline tokens/s of the runs that kept the SLOs."""
        kept = [run for run in self.runs if run.trial.met]
        return max(kept, key=lambda run: run.trial.offline_tokens_per_s, default=None)


@dataclass(slots=True)
class Comparison:
    """``run`` fills ``cells``, and calls ``on_cell`` after each. Runs that the store holds are not made again, and a
    server without any other is not started. ``shares``: of the time, that each online load keeps the first system busy,
    ascending; ``max_runs``: of a search; ``num_baselines``: online-only runs of each load."""

    workload: Workload
    systems: Sequence[System]
    shares: Sequence[float]
    store: RunStore
    progress: FigureProgress
    on_cell: Callable[[], None]
    max_runs: int = 4
    num_baselines: int = 1
    cells: list[Cell] = field(init=False, default_factory=list)

    async def run(self) -> None:
        """Raises LoadgenError."""
        for system in self.systems:
            async with AsyncExitStack() as started:
                await self._run_system(system, _Lazy(self, system, started))

    async def _run_system(self, system: System, runner: _Lazy) -> None:
        rates = [await self._rate(share, runner) for share in self.shares]
        everything = system.everything(self.workload.setting)
        report = await runner.run("offline-only", self.workload.offline_only(), everything)
        best: CoRun | None = None
        for share, rate in zip(self.shares, rates, strict=True):
            self.progress.figure(f"{system.name}, {share:.0%}")
            alone = mean_of([await self._online_only(runner, rate, index) for index in range(self.num_baselines)])
            cell = Cell(system.name, tuple(knob.name for knob in system.knobs), share, rate, alone, _offline(report))
            for index, knob in enumerate(system.knobs):
                first = best.values[0] if best and index == 0 else knob.first(alone)
                await self._search(cell, runner, index, knob, first)
            best = cell.best
            self.cells.append(cell)
            self.on_cell()

    async def _search(self, cell: Cell, runner: _Lazy, index: int, knob: Knob, first: float) -> None:
        """Turn one knob, those before it as they were best, those after it not yet turned."""
        before = cell.best.values[:index] if cell.best else ()
        if len(before) < index:  # nothing kept the SLOs, which more of another knob does not mend
            return
        slos = [parse_slo(expr) for expr in self.workload.setting.slos]
        plan, search = self.workload.together(cell.rate), KnobSearch(knob.ladder, first, self.max_runs)
        while (value := search.next_value()) is not None:
            values = (*before, value, *[0.0] * (len(cell.knobs) - index - 1))
            with_values = "-".join(f"{each:g}" for each in values)
            report = await runner.run(f"{cell.rate:g}-with-{with_values}", plan, values)
            online, offline = _online(report), _offline(report)
            trial = TrialOutcome(online, offline).judge(value, slos, TrialOutcome(cell.alone, None))
            cell.runs.append(CoRun(values, online, offline, trial))
            search.tell(value, trial.met)

    async def _rate(self, share: float, runner: _Lazy) -> float:
        """Requests/s of a load, as chosen before, else by online-only runs of this system."""
        if share in (chosen := self.store.rates()):
            return chosen[share]
        points = [await self._point(rate, runner) for rate in chosen.values()]
        for _ in range(RATE_TRIES):
            if any(abs(point.share - share) <= CLOSE_SHARE for point in points):
                break
            points.append(await self._point(rate_for(share, points), runner))
        rate = nearest(share, points).rate
        self.store.put_rate(share, rate)
        return rate

    async def _point(self, rate: float, runner: _Lazy) -> Point:
        return Point(rate, (await self._online_only(runner, rate, 0)).under_way_share or 0.0)

    async def _online_only(self, runner: _Lazy, rate: float, index: int) -> OnlineReport:
        return _online(await runner.run(f"{rate:g}-alone-{index + 1}", self.workload.online_only(rate), ()))


@dataclass(slots=True)
class _Lazy:
    """A system whose server starts with the first run that is not in the store, and ends with ``started``."""

    of: Comparison
    system: System
    started: AsyncExitStack
    _server: Server | None = field(init=False, default=None)

    async def run(self, name: str, plan: ReplayPlan, values: tuple[float, ...]) -> Report:
        """Stored where it was not yet. Raises ServerError where not one online request was answered."""
        store, workload, system = self.of.store, self.of.workload, self.system
        if (report := store.get(system.name, name)) is not None:
            return report
        if self._server is None:
            serving = system.serving(workload.setting, workload.model_path, store.server_folder(system.name))
            self._server = await self.started.enter_async_context(serving)
        if values:
            plan = replace(plan, **await self._server.turn(*values))
        async with OpenAIClient(self._server.url, REQUEST_TIMEOUT_S) as client:
            replay = Replay(plan, client, RenamedProgress(self.of.progress, lambda _: f"{system.name}: {name}"))
            await replay.prepare_and_run()
        report = replay.report(partial=False)
        if report.online is not None and not report.online.completed:
            raise ServerError(f"{system.name}: {name}: no online request was answered ({'; '.join(report.notes)})")
        store.put(system.name, name, report)
        return report


def mean_of(reports: Sequence[OnlineReport]) -> OnlineReport:
    """Each latency figure, and the share of time under way, the mean of the runs'; the rest is the first run's."""
    changes: dict[str, Summary | float | None] = {}
    for name in LATENCIES:
        if summaries := [msgspec.structs.astuple(each) for report in reports if (each := getattr(report, name))]:
            changes[name] = Summary(*map(fmean, zip(*summaries, strict=True)))
    changes["under_way_share"] = fmean(report.under_way_share or 0.0 for report in reports)
    return msgspec.structs.replace(reports[0], **changes)


def _online(report: Report) -> OnlineReport:
    if report.online is None:
        raise ServerError(f"{report.run.url} answered no online request")
    return report.online


def _offline(report: Report) -> OfflineReport:
    if report.offline is None:
        raise ServerError(f"{report.run.url} did no offline work")
    return report.offline
