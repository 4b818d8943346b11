"""A whole simulated run: with a baseline the online-only and offline-only windows, then the measured one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from loadgen.progress import ReplayProgress
from loadgen.replay import ReplayPlan
from loadgen.report.outcome import OFFLINE_ONLY, ONLINE_ONLY, TOGETHER, compose
from loadgen.report.report import Report
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from shared.simulation.setup import ExecutorSetup

STEPS_PER_PROGRESS = 500


@dataclass
class Simulation:
    """``run``, then ``report``; the report may be taken after an interrupt. Same inputs, same report, but for its
    date. Raises ValueError for a strategy whose knobs do not fit, WorkloadError for a model folder without tokenizer.
    """

    plan: ReplayPlan
    setup: ExecutorSetup
    url: str
    progress: ReplayProgress
    num_clients: int = 1
    num_executors: int = 1
    num_strict: int = 0
    phases: dict[str, VirtualPhase] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.setup.strategy.make_offline_rate()
        self._workload = SimulatedWorkload(
            self.plan,
            self.setup,
            self.num_clients,
            num_executors=self.num_executors,
            num_strict=self.num_strict,
        )

    def run(self) -> None:
        """All phases, one after another."""
        plan, duration_s = self.plan, self.plan.scaling.duration_s
        if plan.baseline:
            self._run_phase(ONLINE_ONLY, duration_s, online=True, offline=False)
            if plan.prompts:
                self._run_phase(OFFLINE_ONLY, duration_s * plan.offline_only_share, online=False, offline=True)
        self._run_phase(TOGETHER, duration_s, online=bool(plan.requests), offline=bool(plan.prompts))

    def report(self, partial: bool) -> Report:
        """What has been measured so far."""
        outcomes = {name: phase.outcome() for name, phase in self.phases.items()}
        date = datetime.now(UTC).isoformat(timespec="seconds")
        workload, name = self._workload, self.plan.model or ""
        notes = [*workload.notes, *(self._cut_short() if partial else ())]
        facts = self.plan.facts(date, self.url, name, workload.max_context, "token ids", exact_output=True)
        return compose(facts, outcomes, self.plan.slos, self.plan.baseline, partial, notes)

    def _cut_short(self) -> Iterator[str]:
        """The phase that ran last, if one did."""
        for name, phase in list(self.phases.items())[-1:]:
            yield f"{name}: stopped {phase.how_far}"

    def _run_phase(self, name: str, duration_s: float, online: bool, offline: bool) -> None:
        workload = self._workload
        self.progress.phase(name, len(workload.requests) * online, len(workload.backlog) * offline)
        phase = workload.phase(self.setup, duration_s, online, offline, lambda phase: tell(phase, self.progress))
        self.phases[name] = phase
        phase.run(self.plan.drain and name == TOGETHER)


def tell(phase: VirtualPhase, progress: ReplayProgress) -> None:
    """Every so many steps, how far a phase is."""
    if phase.num_steps % STEPS_PER_PROGRESS == 0:
        progress.online(len(phase.records), phase.num_online_finished, phase.num_online_failed)
        progress.offline(phase.num_offline_finished, phase.backlog_size)
