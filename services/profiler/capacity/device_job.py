"""The plan of one device, step after step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from loadgen.progress import ReplayProgress
from loadgen.report.report import OfflineReport
from loadgen.report.slo import Slo
from services.profiler.capacity.least_resources import peak_trials
from services.profiler.capacity.most_throughput import MostThroughput
from services.profiler.capacity.record import Backlog, BesideOnline, DevicePlan, PeakTrial
from services.profiler.capacity.resources import Resources, from_the_smallest
from services.profiler.capacity.workload import PlannedWorkload
from services.profiler.simulation.setup import Machine
from shared.scheduling.strategy import Strategy
from shared.simulation.setup import ExecutorSetup


@dataclass(frozen=True, slots=True)
class DeviceJob:
    """``machine``: of that device; how many executors and GPUs for each is what is looked for. ``backlog_requests``:
    how many the offline work is that its time is wanted of."""

    machine: Machine
    strategy: Strategy
    workload: PlannedWorkload
    slos: Sequence[Slo]
    tensor_parallels: Sequence[int]
    max_executors: int
    backlog_requests: int
    seed: int

    @property
    def device(self) -> str:
        return self.machine.device

    def run(self, progress: ReplayProgress, so_far: Callable[[DevicePlan], None]) -> DevicePlan:
        """``so_far`` hears of the first step's answer, before the second."""
        ways = from_the_smallest(self.tensor_parallels, self.max_executors, self.machine.pipeline_depth)
        trials = peak_trials(ways, self._setup, self.workload, self.slos, progress)
        plan = DevicePlan(self.device, trials)
        if not trials[-1].met:
            why = f"no more than {self.max_executors} executors keep the SLOs of online work alone at its peak"
            return msgspec.structs.replace(plan, problem=f"{why}: {_nearest(trials[-1])}; --max-executors allows more")
        plan = msgspec.structs.replace(plan, least=trials[-1])
        so_far(plan)
        return self._with_offline_work(plan, trials[-1], progress)

    def _with_offline_work(self, plan: DevicePlan, least: PeakTrial, progress: ReplayProgress) -> DevicePlan:
        setup = self._setup(Resources(least.executors, least.tensor_parallel))
        if not self.workload.whole.prompts:
            return msgspec.structs.replace(plan, notes=self.workload.online_at_peak(setup, 1).notes)
        most = MostThroughput(self.workload, setup, least.executors, self.slos, progress)
        plan = msgspec.structs.replace(plan, notes=most.whole.notes)
        beside = most.beside_online()
        if beside is None:
            problem = "offline work beside these executors breaks the SLOs, however little it is"
            return msgspec.structs.replace(plan, problem=problem)
        backlog = backlog_of(self.backlog_requests, least.gpus // least.executors, beside, most.alone())
        return msgspec.structs.replace(plan, beside=beside, backlog=backlog)

    def _setup(self, way: Resources) -> ExecutorSetup:
        machine = replace(self.machine, tensor_parallel=way.tensor_parallel, executors=way.executors)
        return machine.setup(self.strategy, self.seed)


def backlog_of(requests: int, gpus_each: int, beside: BesideOnline, alone: OfflineReport) -> Backlog:
    """``alone``: of one executor, which has so many GPUs."""
    beside_h = requests / beside.offline_requests_per_s / 3600 if beside.offline_requests_per_s else None
    alone_h = requests / alone.requests_per_s / 3600 if alone.requests_per_s else None
    gpu_hours = None if alone_h is None else alone_h * gpus_each
    spared = gpu_hours / beside_h if beside_h and gpu_hours is not None else None
    return Backlog(requests, beside_h, alone.requests_per_s, alone.total_tokens_per_s or 0.0, gpu_hours, spared)


def _nearest(trial: PeakTrial) -> str:
    """What the last of them came to."""
    if trial.lost:
        return f"with {trial.gpus} GPUs {trial.lost} was lost after {trial.lost_after_s:.0f} s"
    missed = [f"{each.expr} ({each.value_ms:.4g} ms)" for each in trial.verdicts if each.value_ms and not each.met]
    return f"with {trial.gpus} GPUs missed: {', '.join(missed) or 'requests failed'}"
