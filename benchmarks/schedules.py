"""Batches as a schedule makes them: chats and long prompts beside an offline backlog, in virtual time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.predictor.boosted_fit import fit_boosted
from services.predictor.window import SampleWindow
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.simulation import Simulation
from shared.latency.features import BatchFeatures
from shared.latency.model import LatencyModel
from shared.scheduling.strategy import Strategy

DURATION_S = 60.0
WINDOW = 4096
PRESET, BUDGET_MS = "hygen", 50.0


@dataclass
class Recording:
    """A latency model that keeps what it was asked: the batches that ran."""

    model: LatencyModel
    shapes: list[BatchFeatures] = field(default_factory=list)

    def predict_ms(self, features: BatchFeatures) -> float:
        self.shapes.append(features)
        return self.model.predict_ms(features)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        return self.model.decode_cost_ms(features, context_len)

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return self.model.prefill_cost_ms(features, num_tokens, num_computed_tokens)

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        return self.model.max_prefill_tokens(features, num_computed_tokens, budget_ms, limit)


def scheduled_shapes(machine: Machine, seed: int, rate: float = 2.0) -> list[BatchFeatures]:
    """The batches of a minute of ``rate`` online requests a second, lengths spread over three decades, and summaries
    without end, on a simulated machine."""
    rng = random.Random(seed)
    arrivals, now_s = [], rng.expovariate(rate)
    while now_s < DURATION_S:
        lengths = int(rng.lognormvariate(6.0, 1.0)) + 1, int(rng.lognormvariate(4.5, 0.8)) + 1
        arrivals.append(TraceRequest(now_s, *lengths))
        now_s += rng.expovariate(rate)
    prompts = [OfflinePrompt(rng.randint(50, 300), num_prompt_tokens=rng.randint(500, 3500)) for _ in range(500)]
    setup = machine.setup(Strategy.of(PRESET, budget_ms=BUDGET_MS), seed)
    recording = Recording(setup.latency)
    plan = ReplayPlan(arrivals, prompts, Scaling(duration_s=DURATION_S), model=setup.spec.model)
    Simulation(plan, replace(setup, latency=recording), "sim://test", NoProgress()).run()
    return recording.shapes


def window_of(shapes: list[BatchFeatures], truth: LatencyModel, noise: float, seed: int) -> SampleWindow:
    """Timed by ``truth`` times a lognormal factor with ``noise`` as its sigma, as the predictor keeps them."""
    rng = random.Random(seed)
    window = SampleWindow(WINDOW)
    for shape in shapes:
        window.add(shape, truth.predict_ms(shape) * rng.lognormvariate(0.0, noise))
    return window


def boosted_model(machine: Machine) -> LatencyModel:
    """Fitted to batches of a simulated schedule, timed with 1% of noise: what plans are made with on a running
    stack."""
    truth = machine.setup(Strategy.of(PRESET, budget_ms=BUDGET_MS), seed=0).latency
    model = fit_boosted(window_of(scheduled_shapes(machine, seed=1), truth, noise=0.01, seed=2).observations())
    assert model is not None, "LightGBM cannot be loaded"
    return model
