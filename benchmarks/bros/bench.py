"""One machine: its runs by system, dataset and rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.bros.workload import LMSYS, SHAREGPT, WAVE_SIZE, Dataset, backlog
from benchmarks.progress import FigureProgress
from loadgen.replay import ReplayPlan
from loadgen.report.metrics import LatencySamples
from loadgen.report.report import OnlineReport
from loadgen.report.slo import parse_slo
from loadgen.workload.scaling import Scaling
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.simulation import tell
from services.profiler.simulation.strategy import Strategy
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from shared.latency.model import LatencyModel
from shared.scheduling.packing.token_slo import TokenSlo
from shared.scheduling.presets import Preset, preset_named

DURATION_S = 600.0
RATES = (4.0, 8.0, 12.0, 16.0, 20.0)
SEED = 0
SLO = TokenSlo(400.0, 200.0)  # section 7.1
BACKLOG_PER_S = 16  # more than any of the machines finishes
DATASETS = (SHAREGPT, LMSYS)
SYSTEMS = ("bros", "hygen", "round-robin", "fcfs")
MACHINES = {
    "llama2-7b": Machine(model="llama2-7b", device="a100-40g"),
    "llama3.1-8b": Machine(model="llama3.1-8b", device="a100-40g"),
    "opt-13b": Machine(model="opt-13b", device="a100-40g", tensor_parallel=2),
    "opt-30b": Machine(model="opt-30b", device="a100-40g", tensor_parallel=4),
    "llama3-70b": Machine(model="llama3-70b", device="a100-80g", tensor_parallel=8),
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """``budget_ms``: hygen's; ``chunk``: tokens of a step; ``kv_blocks``: None is what fits beside the weights."""

    model: str = "opt-13b"
    rates: tuple[float, ...] = RATES
    duration_s: float = DURATION_S
    budget_ms: float = 50.0
    chunk: int = 512
    kv_blocks: int | None = None

    @property
    def machine(self) -> Machine:
        return replace(MACHINES[self.model], max_num_batched_tokens=self.chunk, kv_blocks=self.kv_blocks)

    @property
    def setting(self) -> str:
        """For captions."""
        machine = self.machine
        gpus = "" if machine.tensor_parallel == 1 else f"{machine.tensor_parallel}x "
        blocks = "" if self.kv_blocks is None else f", {self.kv_blocks:,} KV blocks"
        return f"{machine.model} on {gpus}{machine.device}, {self.chunk} tokens a step{blocks}, {self.duration_s:g} s"


@dataclass(frozen=True, slots=True)
class Measured:
    """Over all online requests that arrived in the window, and the offline ones that ended in it."""

    online: OnlineReport
    ttft_attainment: float
    tpot_attainment: float
    offline_requests_per_s: float
    preemptions: int

    @classmethod
    def of(cls, phase: VirtualPhase) -> Measured:
        outcome, samples = phase.outcome(), LatencySamples.of(phase.records)
        assert outcome.online is not None and outcome.offline is not None
        slos = (f"ttft_p50<={SLO.ttft_ms:g}ms", f"tpot_p50<={SLO.tpot_ms:g}ms")
        ttft, tpot = (parse_slo(slo).judge(outcome.online, samples, None).attainment or 0.0 for slo in slos)
        preemptions = phase.executor.replica.totals.preemptions
        return cls(outcome.online, ttft, tpot, outcome.offline.requests_per_s, preemptions)

    @property
    def normalized_latency_ms(self) -> float:
        latency = self.online.normalized_latency_ms
        return latency.mean if latency is not None else 0.0

    @property
    def ttft_p99_ms(self) -> float:
        return self.online.ttft_ms.p99 if self.online.ttft_ms is not None else 0.0


class Bench:
    """What was run before is not run again."""

    def __init__(self, inputs: Inputs, progress: FigureProgress) -> None:
        self.inputs = inputs
        self._progress = progress
        self._measured: dict[tuple[str, str, float], Measured] = {}

    def run(self, system: str, dataset: Dataset, rate: float) -> Measured:
        key = (system, dataset.name, rate)
        if key not in self._measured:
            self._progress.phase(f"{system}, {dataset.name}, {rate:g}/s", round(rate * self.inputs.duration_s), 0)
            phase = self.phase(preset_named(system), dataset, rate, lambda phase: tell(phase, self._progress))
            phase.run()
            self._measured[key] = Measured.of(phase)
        return self._measured[key]

    def phase(
        self,
        preset: Preset,
        dataset: Dataset,
        rate: float,
        on_change: Callable[[VirtualPhase], None] | None = None,
        planner: LatencyModel | None = None,
    ) -> VirtualPhase:
        """A run of its own, not yet begun. ``planner``: what plans are made with, else what steps take."""
        duration_s = self.inputs.duration_s
        budget_ms = self.inputs.budget_ms if preset.uses_latency_budget else None
        strategy = Strategy(preset, budget_ms, slo=SLO)
        setup = self.inputs.machine.setup(strategy, SEED)
        setup = replace(setup, planner=planner or setup.planner)
        requests = dataset.arrivals(rate, duration_s, SEED)
        prompts = backlog(max(WAVE_SIZE, round(duration_s * BACKLOG_PER_S)), SEED)
        plan = ReplayPlan(requests, prompts, Scaling(duration_s=duration_s, seed=SEED))
        workload = SimulatedWorkload(plan, setup, wave_size=WAVE_SIZE)
        return workload.phase(setup, strategy, duration_s, online=True, offline=True, on_change=on_change)
