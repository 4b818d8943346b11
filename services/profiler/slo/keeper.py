"""How one kind of executor keeps its SLOs: when to search for a budget, and what the budget is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from loadgen.report.slo import Slo
from services.profiler.settings import ProfilerSettings, start_budget_ms
from services.profiler.slo.feedback import BudgetFeedback, Target
from services.profiler.slo.job import SloJob
from services.profiler.slo.online_watch import OnlineWatch
from services.profiler.slo.search import why_missed
from services.profiler.slo.workload import (
    ALL_MIXED,
    Workload,
    drift,
    executor_drift,
    executor_facts,
    model_drift,
)
from shared.latency.model import cheapest_step_ms
from shared.protocol.executors import ExecutorInfo
from shared.protocol.offline.requests import OfflineLength
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource, SloState, SloStatus
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.protocol.profiling.slo_profile import SloProfileRecord, SloVerdict, WorkloadFacts, plain_spelling

REST = 10.0  # between searches, times what the last one took: they get a tenth of a core
NO_OFFLINE_WORK_MS = 0.0
LIVE = "live"  # what a record of a search by live runs says that it ran on
LONGER = 3.0  # a recording, to be worth another search: the first are short, and a p99 of few requests says little
USUAL_OFFLINE = [OfflineLength(num_prompt_tokens=1024, max_tokens=128)]  # until offline requests have been seen


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published latency model and its revision."""

    record: LatencyModelRecord
    revision: int


class SloKeeper:
    """Decides; others measure, search and publish. ``now_s`` is monotonic, ``unix_s`` the time of day."""

    def __init__(
        self, info: ExecutorInfo, slos: Sequence[Slo], settings: ProfilerSettings, now_s: float, unix_s: float
    ) -> None:
        self.info = info
        self.online = OnlineWatch(unix_s)
        self.record: SloProfileRecord | None = None
        self.is_searching = False
        self.model: PublishedModel | None = None  # the newest
        self.slos = slos
        self._settings = settings
        self._start_ms = start_budget_ms(slos)
        self._targets = [Target(slo) for slo in slos if not slo.relative]
        self._feedback: BudgetFeedback | None = None  # None where no budget keeps the SLOs
        self._profiled_model: LatencyModelRecord | None = None
        self._profiled_workload: WorkloadFacts | None = None  # None where drift is not looked for yet
        self._offline: list[OfflineLength] = []
        self._failure = ""
        self._next_check_s = now_s
        if self._targets and self._start_ms:  # relative ones are not known before the first search
            self._feedback = BudgetFeedback(self._start_ms, NO_OFFLINE_WORK_MS, self._targets, now_s, largest_share=1.0)

    def on_offline(self, lengths: list[OfflineLength]) -> None:
        """Offline requests that are there now; the last that were seen are remembered."""
        self._offline = lengths or self._offline

    def search_because(self, now_s: float, unix_s: float) -> str:
        """Why a search is due; empty where none is. It is looked at once in a while, before the first more often."""
        if self._why_never or self.is_searching or self.model is None or now_s < self._next_check_s:
            return ""
        waits = self.record is None and not self._failure
        settings, workload = self._settings, self.online.workload(unix_s)
        self._next_check_s = now_s if waits else now_s + settings.slo_check_s
        if workload is None or not (workload.is_full or self._is_enough(workload)):
            return ""
        return self._drift(workload) if self.record is not None else "first"

    def job(self, slos: Sequence[str], unix_s: float, why: str) -> SloJob | None:
        """What to search with; None while the latency model or the workload is lacking."""
        workload = self.online.workload(unix_s)
        if workload is None or self.model is None:
            return None
        return SloJob(
            info=self.info,
            pools=self.online.pools,
            model=self.model.record,
            model_revision=self.model.revision,
            slos=list(slos),
            requests=[(each.arrival_s, each.num_prompt_tokens, each.num_output_tokens) for each in workload.requests],
            duration_s=workload.duration_s,
            offline=self._offline or USUAL_OFFLINE,
            offline_source="backlog" if self._offline else "usual lengths",
            now_s=unix_s,
            why=why,
        )

    def on_failed(self, why: str) -> None:
        """A search came to no end; the budget stays, and the next look may search again."""
        self._failure = why

    def on_found(
        self, record: SloProfileRecord, now_s: float, model: LatencyModelRecord | None = None, took_s: float = 0.0
    ) -> None:
        """A search ended, with this model, or a record of an earlier one was found. What feedback has learned stays: a
        budget that it has cut goes up slowly, and what the machine takes alone beyond the simulator's figure."""
        held_ms = self._feedback.budget_ms if self._feedback is not None and self._feedback.share < 1.0 else math.inf
        measured_alone_ms = {target.slo.expr: target.measured_alone_ms for target in self._targets}
        self.record, self._profiled_model, self._failure = record, model, ""
        self._profiled_workload = None if record.runs_on == LIVE else record.workload
        self._next_check_s = now_s + max(self._settings.slo_check_s, REST * took_s)
        self._targets, self._feedback = [], None
        if record.value is not None:
            alone_ms = {verdict.expr: verdict.value_ms or 0.0 for verdict in record.best}
            self._targets = [Target(slo, alone_ms[slo.expr], measured_alone_ms.get(slo.expr, 0.0)) for slo in self.slos]
            cheapest_ms = cheapest_step_ms(self.model.record.latency_model()) if self.model else NO_OFFLINE_WORK_MS
            floor_ms, share = 0.99 * cheapest_ms, min(1.0, held_ms / record.value)
            self._feedback = BudgetFeedback(record.value, floor_ms, self._targets, now_s, share)

    def correct(self, now_s: float) -> None:
        """Once a second: let what users got since the last call correct the budget."""
        latencies, offline_ran = self.online.take()
        if self._feedback is not None:
            self._feedback.observe(now_s, latencies, offline_ran)

    def budget(self) -> BudgetRecord:
        """As of now."""
        key, strategy = self.info.profile_key, self.info.strategy
        source = BudgetSource.SLO_START if self.record is None else BudgetSource.SLO
        if self._feedback is not None:
            source = source if self._feedback.share == 1.0 else BudgetSource.FEEDBACK
            return BudgetRecord(key, round(self._feedback.budget_ms, 3), source, strategy.idle_budget_ms)
        if self.record is not None:
            return BudgetRecord(key, NO_OFFLINE_WORK_MS, source, strategy.idle_budget_ms)
        if self._start_ms is None:
            return BudgetRecord(key, 0.0, BudgetSource.TOLERANCE, strategy.idle_budget_ms, strategy.tolerance)
        return BudgetRecord(key, self._start_ms, source, strategy.idle_budget_ms)

    def status(self, now_s: float, unix_s: float) -> SloStatus:
        """For people."""
        budget, record = self.budget(), self.record
        profiled_ms, at_s, why = (record.value, record.profiled_at_s, record.why) if record else (None, None, "")
        held_to = (budget.latency_budget_ms, budget.source, self._measured(now_s))
        profiled, slos = (profiled_ms, at_s, why), [slo.expr for slo in self.slos]
        note = "; ".join(filter(None, (self._note(unix_s), self.ignored)))
        return SloStatus(self.info.profile_key, self._state(), *held_to, *profiled, note, slos)

    @property
    def ignored(self) -> str:
        """What of its executors' settings gives way to SLOs, in words; empty where nothing does."""
        fixed_ms = self.info.strategy.budget_ms
        if not (self.slos and fixed_ms):
            return ""
        return f"budget_ms {fixed_ms:g} of its executors gives way to the SLOs: leave one of them out"

    @property
    def _why_never(self) -> str:
        """Why no budget would keep an SLO, as it would hold nothing; empty where one may."""
        strategy = self.info.strategy
        return "" if strategy.uses_latency_budget else f"preset {strategy.preset} has no latency budget to keep them"

    def _is_enough(self, workload: Workload) -> bool:
        settings = self._settings
        return len(workload.requests) >= settings.slo_min_requests and workload.duration_s >= settings.slo_min_s

    def _drift(self, workload: Workload) -> str:
        """What a live search found was measured, on requests that whoever asked for it had chosen: it holds until the
        workload and the model are others than when they are first looked at after it."""
        assert self.record is not None and self.model is not None
        pools = ALL_MIXED if self.record.runs_on == LIVE else self.online.pools
        changed = executor_drift(executor_facts(self.info, pools), self.record.executor)
        if changed:
            return f"another executor: {changed}"
        then = self._profiled_workload
        if then is None:
            self._profiled_workload, self._profiled_model = workload.facts(), self.model.record
            return ""
        changed = drift(workload.facts(), then, self._settings.slo_drift)
        if changed:
            return f"workload drift: {changed}"
        if self.record.runs_on != LIVE and workload.duration_s >= LONGER * then.duration_s:
            return f"longer recording: {workload.duration_s:.0f} s instead of {then.duration_s:.0f} s"
        if self.record.model_revision == self.model.revision:
            return ""
        changed = model_drift(self.model.record, self._profiled_model, then, self.info)
        return f"model drift: {changed}" if changed else ""

    def _state(self) -> SloState:
        if self._why_never:
            return SloState.FAILED
        if self.record is not None:
            return SloState.UNREACHABLE if self.record.value is None else SloState.PROFILED
        if self._failure:
            return SloState.FAILED
        if self.is_searching:
            return SloState.SEARCHING
        return SloState.WAITING if self.model is None else SloState.RECORDING

    def _measured(self, now_s: float) -> list[SloVerdict]:
        latencies = self.online.last_minute.total(now_s)
        bounds = {target.slo.expr: target.bound_ms for target in self._targets}
        best = {verdict.expr: verdict.bound_ms for verdict in self.record.best} if self.record else {}
        verdicts = []
        for slo in self.slos:
            bound_ms = bounds.get(slo.expr) or best.get(slo.expr) or slo.bound_ms(None)
            value_ms = latencies.value_ms(slo)
            verdicts.append(SloVerdict(slo.expr, bound_ms, value_ms, slo.is_met(value_ms, bound_ms)))
        return verdicts

    def _note(self, unix_s: float) -> str:
        if self._why_never:
            return self._why_never
        if self._failure:
            return f"the search failed: {self._failure}"
        if self.record is not None and self.record.value is None:
            return why_unreachable(self.record)
        if self._feedback is not None and self._feedback.is_broken_alone:
            return "broken although no offline work runs"
        if self._state() is SloState.RECORDING:
            workload = self.online.workload(unix_s)
            count, seconds = (len(workload.requests), workload.duration_s) if workload else (0, 0.0)
            return (
                f"{count} of {self._settings.slo_min_requests} requests, "
                f"{seconds:.0f} of {self._settings.slo_min_s:g} s recorded"
            )
        return ""


def why_unreachable(record: SloProfileRecord) -> str:
    """Which SLOs no budget keeps, and the best that can be promised."""
    if not record.reachable:
        return f"not kept even without offline work: {why_missed(record.trials[0])}"
    least = min((trial for trial in record.trials if trial.value > 0), key=lambda trial: trial.value)
    return f"not kept with any offline work: {why_missed(least)}"


def rename(record: SloProfileRecord, slos: Sequence[Slo]) -> SloProfileRecord:
    """A record of the same SLOs in another spelling and order, in ours."""
    spelled = {plain_spelling(slo.expr): slo.expr for slo in slos}

    def renamed(verdicts: Sequence[SloVerdict]) -> list[SloVerdict]:
        return [msgspec.structs.replace(v, expr=spelled[plain_spelling(v.expr)]) for v in verdicts]

    trials = [msgspec.structs.replace(trial, verdicts=renamed(trial.verdicts)) for trial in record.trials]
    return msgspec.structs.replace(record, slos=[slo.expr for slo in slos], best=renamed(record.best), trials=trials)
