"""Step 2 of a capacity plan: the most offline work beside the whole window under the SLOs (Echo section 5.4)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from loadgen.progress import ReplayProgress
from loadgen.report.metrics import online_report
from loadgen.report.report import OfflineReport
from loadgen.report.slo import Slo
from services.profiler.capacity.intervals import IntervalCounter
from services.profiler.capacity.lost_slos import LostSlos
from services.profiler.capacity.record import BesideOnline
from services.profiler.capacity.watched_run import SloWatch, are_kept, verdicts_of
from services.profiler.capacity.workload import PlannedWorkload
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.simulated import SimulatedTrials, knob_of, search_slos, with_knob
from shared.protocol.profiling.slo_profile import Knob
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup

PRECISION = 0.1  # between two values of a knob that are tried
MAX_VALUES = 3  # with which the whole window is run
ALONE_S = 900.0

Setting = tuple[Knob, float] | None  # of a knob; None is the strategy as it is


@dataclass(slots=True)
class MostThroughput:
    """A strategy whose latency budget, or offline rate, nobody has set gets the largest that keeps the SLOs at the
    peak, where there is the least room; where the window does not keep them under that one, the next that did at the
    peak, and at last what the strategy does without one. A strategy without such a knob runs as it is."""

    workload: PlannedWorkload
    setup: ExecutorSetup
    executors: int
    slos: Sequence[Slo]
    progress: ReplayProgress
    whole: SimulatedWorkload = field(init=False)

    def __post_init__(self) -> None:
        self.whole = self.workload.in_window(self.setup, self.executors)

    def beside_online(self) -> BesideOnline | None:
        """The first that keeps the SLOs over the window and over its busiest part; None where none does."""
        found = (self._in_window(setting) for setting in self._settings())
        return next((each for each in found if each is not None), None)

    def alone(self) -> OfflineReport:
        """One executor that does nothing else."""
        self.progress.phase("offline work alone", 0, 0)
        duration_s = max(self.workload.peak_s, min(ALONE_S, self.workload.window_s))
        setup = replace(self.setup, strategy=unbounded(self.setup.strategy))
        phase = self.whole.phase(setup, duration_s, online=False, offline=True, num_executors=1)
        phase.run()
        report = phase.outcome().offline
        assert report is not None
        return report

    def _settings(self) -> Iterator[Setting]:
        strategy = self.setup.strategy
        if has_open_knob(strategy):
            at_peak = self.workload.at_peak(self.setup, self.executors)
            trials = SimulatedTrials(at_peak, self.setup, self.workload.peak_s, self.progress)
            search = search_slos(trials, self.slos, PRECISION)
            kept = sorted((trial.value for trial in search.trials if trial.met and trial.value), reverse=True)
            yield from ((trials.knob, value) for value in kept[:MAX_VALUES])
        if not strategy.missing_knob():
            yield None

    def _in_window(self, setting: Setting) -> BesideOnline | None:
        requests, window_s = self.whole.requests, self.workload.window_s
        peak = [index for index, each in enumerate(requests) if self.workload.is_of_peak(each.arrival_s)]
        losses = LostSlos(self.slos, requests), LostSlos(self.slos, [requests[index] for index in peak], peak[0])
        watch = SloWatch(losses, lambda phase: tell(phase, self.progress))
        counter = IntervalCounter(window_s)

        def on_change(phase: VirtualPhase) -> None:
            counter.look(phase)
            watch(phase)

        self.progress.phase(f"{_told(setting)}, the whole window", len(requests), 0)
        phase = self.whole.phase(self._set(setting), window_s, online=True, offline=True, on_change=on_change)
        phase.run()
        return None if watch.lost else self._judged(setting, phase, slice(peak[0], peak[-1] + 1), counter)

    def _set(self, setting: Setting) -> ExecutorSetup:
        return self.setup if setting is None else replace(self.setup, strategy=with_knob(self.setup.strategy, *setting))

    def _judged(
        self, setting: Setting, phase: VirtualPhase, peak: slice, counter: IntervalCounter
    ) -> BesideOnline | None:
        outcome = phase.outcome()
        offline, online = outcome.offline, outcome.online
        assert offline is not None and online is not None
        busiest = online_report(phase.records[peak], 0.0, self.workload.window_s)
        verdicts = verdicts_of(self.slos, online), verdicts_of(self.slos, busiest)
        if not (are_kept(verdicts[0], online) and are_kept(verdicts[1], busiest)):
            return None
        return BesideOnline(
            knob=setting[0] if setting else None,
            value=setting[1] if setting else None,
            window=verdicts[0],
            busiest=verdicts[1],
            idle_share=outcome.idle_share or 0.0,
            offline_requests_per_s=offline.requests_per_s,
            offline_tokens_per_s=offline.total_tokens_per_s or 0.0,
            offline_output_tokens_per_s=offline.output_tokens_per_s or 0.0,
            intervals=counter.intervals(phase),
        )


def has_open_knob(strategy: Strategy) -> bool:
    """A latency budget, or an offline rate, that nobody has set."""
    return strategy.latency_budget == "profiled" or (strategy.offline_rate == "fixed" and not strategy.offline_qps)


def unbounded(strategy: Strategy) -> Strategy:
    """Without anything that holds offline work back for online work's sake."""
    has_knob = strategy.uses_latency_budget or strategy.offline_rate == "fixed"
    return with_knob(strategy, knob_of(strategy), math.inf) if has_knob else strategy


def _told(setting: Setting) -> str:
    if setting is None:
        return "as the strategy is"
    knob, value = setting
    return f"budget {value:g} ms" if knob is Knob.BUDGET_MS else f"{value:g} offline requests/s"
