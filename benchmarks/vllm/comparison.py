"""The runs of a comparison: which, in which order, on which server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from statistics import fmean

import msgspec

from benchmarks.harness.page import FigureProgress
from benchmarks.harness.tries import MAX_TRIES
from benchmarks.vllm.run_store import FailedTry, RunStore, StoredRun
from benchmarks.vllm.search import KnobSearch, Point, nearest, rate_for
from benchmarks.vllm.servers import Knob, Server, System
from benchmarks.vllm.workload import Workload
from loadgen.errors import ServerError
from loadgen.replay import ReplayPlan
from loadgen.report.metrics import LATENCIES
from loadgen.report.report import OfflineReport, OnlineReport, Report, Summary
from loadgen.report.slo import parse_slo
from services.profiler.slo.search import TrialOutcome
from shared.protocol.profiling.slo_profile import Trial

RATE_TRIES, CLOSE_SHARE = 3, 0.05


@dataclass(frozen=True, slots=True)
class CoRun:
    """Online and offline work together, with one setting of the system's knob."""

    value: float | None  # None where it has none
    alone: OnlineReport  # what it is compared with: the online-only run of its turn, or the mean of all
    online: OnlineReport
    offline: OfflineReport
    trial: Trial


@dataclass(slots=True)
class Cell:
    """One system under one online load. ``share``: of the time that the load is wanted to keep a server busy."""

    system: str
    knob: str  # empty where it has none
    share: float
    rate: float
    offline_alone: OfflineReport
    alone_runs: list[OnlineReport] = field(default_factory=list)
    runs: list[CoRun] = field(default_factory=list)  # in the order in which they ran
    mean: CoRun | None = None  # of the runs of a system without a knob

    @property
    def alone(self) -> OnlineReport:
        """The mean of the online-only runs, of which there is one at least."""
        return mean_of(self.alone_runs)

    @property
    def idle_share(self) -> float:
        """Of the time, without online requests under way."""
        return 1 - (self.alone.under_way_share or 0.0)

    @property
    def best(self) -> CoRun | None:
        """The most offline tokens/s of the runs that kept the SLOs; without a knob the mean of all, where that did."""
        kept = [run for run in ([self.mean] if self.mean else self.runs) if run.trial.met]
        return max(kept, key=lambda run: run.trial.offline_tokens_per_s, default=None)


@dataclass(slots=True)
class Comparison:
    """``run`` fills ``cells``, and calls ``on_cells`` when those of a load are done. Runs that the store holds are not
    made again, and a server without any other is not started; the others stay until the end, so that online-only runs,
    and those beside a batch where there is no knob to search, go in turns over all systems, ``repeats`` times.
    ``shares``: of the time, that each online load keeps the first system busy, ascending; ``max_runs``: of a search.
    A run in which online requests failed is made again, ``MAX_TRIES`` times in all; ``failures`` has each such try, and
    ``tell`` hears of it at once."""

    workload: Workload
    systems: Sequence[System]
    shares: Sequence[float]
    store: RunStore
    progress: FigureProgress
    on_cells: Callable[[], None]
    max_runs: int = 4
    repeats: int = 1
    tell: Callable[[str], None] = lambda _: None
    cells: list[Cell] = field(init=False, default_factory=list)
    failures: list[FailedTry] = field(init=False, default_factory=list)

    async def run(self) -> None:
        """Raises LoadgenError."""
        async with AsyncExitStack() as started:
            runners = [_Lazy(self, system, started) for system in self.systems]
            rates = [await self._rate(share, runners[0]) for share in self.shares]
            offline = [await self._offline_only(runner) for runner in runners]
            for share, rate in zip(self.shares, rates, strict=True):
                self.progress.figure(f"{share:.0%}")
                names = [(system.name, system.knob.name if system.knob else "") for system in self.systems]
                cells = [Cell(*name, share, rate, report) for name, report in zip(names, offline, strict=True)]
                await self._run_in_turns(cells, runners)
                for cell, runner in zip(cells, runners, strict=True):
                    if runner.system.knob is not None:
                        await self._search(cell, runner, runner.system.knob)
                self.cells += cells
                self.on_cells()

    async def _run_in_turns(self, cells: Sequence[Cell], runners: Sequence[_Lazy]) -> None:
        beside: dict[str, list[Report]] = {}
        for index in range(self.repeats):
            for cell, runner in zip(cells, runners, strict=True):
                cell.alone_runs.append(await self._online_only(runner, cell.rate, index))
                if runner.system.knob is None:
                    name, plan = f"{cell.rate:g}-with-batch-{index + 1}", self.workload.together(cell.rate)
                    beside.setdefault(cell.system, []).append(await runner.run(name, plan, None))
        for cell in cells:
            if reports := beside.get(cell.system):
                turns = zip(cell.alone_runs, reports, strict=True)
                cell.runs = [
                    self._judged(None, alone, online_of(report), offline_of(report)) for alone, report in turns
                ]
                online = mean_of([run.online for run in cell.runs])
                cell.mean = self._judged(None, cell.alone, online, _mean_offline([run.offline for run in cell.runs]))

    async def _search(self, cell: Cell, runner: _Lazy, knob: Knob) -> None:
        plan, search = self.workload.together(cell.rate), KnobSearch(knob.ladder, knob.first, self.max_runs)
        while (value := search.next_value()) is not None:
            report = await runner.run(f"{cell.rate:g}-with-{value:g}", plan, value)
            cell.runs.append(self._judged(value, cell.alone, online_of(report), offline_of(report)))
            search.tell(value, cell.runs[-1].trial.met)

    def _judged(self, value: float | None, alone: OnlineReport, online: OnlineReport, offline: OfflineReport) -> CoRun:
        slos = [parse_slo(expr) for expr in self.workload.setting.slos]
        trial = TrialOutcome(online, offline).judge(value or 0.0, slos, TrialOutcome(alone, None))
        return CoRun(value, alone, online, offline, trial)

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

    async def _offline_only(self, runner: _Lazy) -> OfflineReport:
        knob = runner.system.knob
        return offline_of(await runner.run("offline-only", self.workload.offline_only(), knob and knob.most))

    async def _online_only(self, runner: _Lazy, rate: float, index: int) -> OnlineReport:
        return online_of(await runner.run(f"{rate:g}-alone-{index + 1}", self.workload.online_only(rate), None))


@dataclass(slots=True)
class _Lazy:
    """A system whose server starts with the first run that is not in the store, and ends with ``started``."""

    of: Comparison
    system: System
    started: AsyncExitStack
    _server: Server | None = field(init=False, default=None)
    _told: set[str] = field(init=False, default_factory=set)  # runs whose failures are among the comparison's

    async def run(self, name: str, plan: ReplayPlan, value: float | None) -> Report:
        """Stored where it was not yet. Raises ServerError where not one online request was answered in the last try."""
        if (run := self.of.store.get(self.system.name, name)) is None:
            run = await self._made(name, plan, value)
            self.of.store.put(self.system.name, name, run)
        if name not in self._told:
            self.of.failures += run.failures
            self._told.add(name)
        return run.report

    async def _made(self, name: str, plan: ReplayPlan, value: float | None) -> StoredRun:
        store, workload, system = self.of.store, self.of.workload, self.system
        if self._server is None:
            serving = system.serving(workload.setting, workload.model_path, store.server_folder(system.name))
            self._server = await self.started.enter_async_context(serving)
        title, failures = f"{system.name}: {name}", list[FailedTry]()
        for attempt in range(1, MAX_TRIES + 1):
            replayed = await self._server.replayed(plan, value, self.of.progress, title)
            if not replayed.failed:
                break
            failures.append(FailedTry(system.name, name, attempt, replayed.what_failed))
            again = "is made again" if attempt < MAX_TRIES else "counts as it is"
            self.of.tell(f"{title}: try {attempt} {again}: {replayed.what_failed}")
        report = replayed.report
        if report.online is not None and not report.online.completed:
            raise ServerError(f"{title}: no online request was answered ({'; '.join(report.notes)})")
        return StoredRun(report, failures)


def mean_of(reports: Sequence[OnlineReport]) -> OnlineReport:
    """Each latency figure, and the share of time under way, the mean of the runs'; errors those of the run with the
    most; the rest is the first run's."""
    changes: dict[str, Summary | float | None] = {}
    for name in LATENCIES:
        if summaries := [msgspec.structs.astuple(each) for report in reports if (each := getattr(report, name))]:
            changes[name] = Summary(*map(fmean, zip(*summaries, strict=True)))
    changes["under_way_share"] = fmean(report.under_way_share or 0.0 for report in reports)
    errors = max(report.errors for report in reports)
    return msgspec.structs.replace(reports[0], errors=errors, **changes)


def _mean_offline(reports: Sequence[OfflineReport]) -> OfflineReport:
    """Its rates the mean of the runs'; the rest is the first run's."""
    names = ("total_tokens_per_s", "output_tokens_per_s")
    means = {name: fmean(getattr(report, name) or 0.0 for report in reports) for name in names}
    return msgspec.structs.replace(reports[0], **means)


def online_of(report: Report) -> OnlineReport:
    """Raises ServerError where there is none."""
    if report.online is None:
        raise ServerError(f"{report.run.url} answered no online request")
    return report.online


def offline_of(report: Report) -> OfflineReport:
    """Raises ServerError where there is none."""
    if report.offline is None:
        raise ServerError(f"{report.run.url} did no offline work")
    return report.offline
