"""The stack of one run: what is drawn from its seed before anything begins."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import PRESETS, Strategy
from tests.simulation.knobs import DEFAULTS_SHARE, draw_knobs

MODEL = "smollm2-135m-instruct"
CLIENTS_KEY = "sk-slackwater-of-the-simulated-clients-0001"

STRATEGIES = (
    Strategy(),
    Strategy(budget_ms=400.0, latency_budget="fixed"),
    Strategy(online_order="vtc"),
    *(PRESETS[name] for name in ("sarathi++", "bros", "round-robin", "fcfs")),
    replace(PRESETS["echo"], ttft_slo_ms=4000.0, tpot_slo_ms=500.0),  # of a slow device
    PRESETS["blendserve"],
)
WITH_POOLS = replace(PRESETS["ooco"], ttft_slo_ms=4000.0, tpot_slo_ms=500.0)  # of a slow device
POOLS_SHARE = 0.4  # of stacks with several executors
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Setup:
    """Sizes are small, so that queues are long, memory is short and requests are preempted. ``num_strict``: of the
    executors, those of the strict pool, to which requests move with their KV; 0: no pools. ``knobs``: as ``draw_knobs``
    has them; what is not named is as the services have it."""

    num_gateways: int = 2
    num_executors: int = 2
    num_strict: int = 0
    has_standby: bool = True
    has_tuning: bool = True  # predictor and profiler
    strategy: Strategy = field(default_factory=Strategy)
    pipeline_depth: int = 1
    kv_blocks: int = 256
    block_size: int = BLOCK_SIZE
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256
    max_model_len: int = 2048
    max_waiting_requests: int = 64
    max_flex_requests: int = 256
    drain_s: float = 20.0  # of a gateway
    drain_on_stop_s: float = 0.0  # of an executor
    mean_output_tokens: float = 32.0
    sim_time_scale: float = 10.0
    step_timeout_s: float = 60.0  # of an engine that hangs
    pool_mb: int = 8
    latency_model: str = "roofline"
    window: int = 4096  # of a predictor, samples
    latency_s: float = 0.0005  # of a message between a process and the bus
    jitter_s: float = 0.0005
    sync_interval_s: float = 0.0  # in which the bus may lose what it has confirmed
    knobs: Mapping[str, float] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of all services, in the order in which they start."""
        tuning = ["predictor", "profiler"] if self.has_tuning else []
        queues = ["offline-queue", "offline-queue-standby"] if self.has_standby else ["offline-queue"]
        executors = [f"executor-{index}" for index in range(self.num_executors)]
        return [*tuning, *queues, *executors, *(f"gateway-{index}" for index in range(self.num_gateways))]

    def role(self, executor_id: str) -> Role:
        """The first ones are strict; those that join later are relaxed, as most are."""
        if not self.num_strict:
            return Role.MIXED
        return Role.STRICT if int(executor_id.rpartition("-")[2]) < self.num_strict else Role.RELAXED

    def drain_s_of(self, name: str) -> float:
        """That a service has to end what it has begun, beside what every one has to end."""
        if name.startswith("gateway"):
            return self.drain_s
        return self.drain_on_stop_s if name.startswith("executor") else 0.0

    def told(self) -> dict[str, Any]:
        """All of it, in builtin types; of the strategy, the preset and what differs from it."""
        strategy = {"preset": self.strategy.preset, **self.strategy.changes()}
        return {**dataclasses.asdict(self), "strategy": strategy, "knobs": dict(self.knobs)}


def draw_setup(seed: str) -> Setup:
    """One of many stacks, of which some are run as the services are by default."""
    setup, rng = _draw_stack(seed), random.Random(f"{seed}:knobs")
    return setup if rng.random() < DEFAULTS_SHARE else _turned(setup, rng)


def _turned(setup: Setup, rng: random.Random) -> Setup:
    """With other settings, and other knobs."""
    block_size = rng.choice((8, 16, 32))
    return dataclasses.replace(
        setup,
        kv_blocks=setup.kv_blocks * BLOCK_SIZE // block_size,
        block_size=block_size,
        max_waiting_requests=rng.choice((16, 64, 2048)),
        max_flex_requests=rng.choice((16, 256)),
        drain_s=rng.choice((0.0, 5.0, 20.0)),
        drain_on_stop_s=rng.choice((0.0, 0.0, 3.0)),
        pool_mb=rng.choice((1, 8, 64)),
        latency_model=setup.latency_model if setup.num_strict else rng.choice(("roofline", "bros", "echo")),
        window=rng.choice((256, 4096)),
        knobs=draw_knobs(rng),
    )


def _draw_stack(seed: str) -> Setup:
    rng = random.Random(f"{seed}:setup")
    num_gateways, num_executors = rng.choice((1, 2, 2)), rng.choice((1, 2, 2, 3))
    has_pools = num_executors > 1 and rng.random() < POOLS_SHARE
    strategy = WITH_POOLS if has_pools else rng.choice(STRATEGIES)
    one_stage = strategy.uses_deadlines or strategy.sharing.pauses or rng.random() < 0.75
    return Setup(
        num_gateways=num_gateways,
        num_executors=num_executors,
        num_strict=int(has_pools),
        has_standby=rng.random() < 0.6,
        has_tuning=rng.random() < 0.3 or strategy.latency_budget != "none",  # nobody else knows how long a step takes
        strategy=strategy,
        pipeline_depth=1 if one_stage else rng.choice((2, 3)),
        kv_blocks=rng.choice((128, 256, 1024)),
        max_num_seqs=rng.choice((4, 16, 64)),
        max_num_batched_tokens=rng.choice((64, 256, 512)),
        max_model_len=1024,
        mean_output_tokens=rng.choice((16.0, 48.0)),
        sim_time_scale=rng.choice((10.0, 20.0, 40.0)),
        latency_s=rng.choice((0.0, 0.0005, 0.02)),
        jitter_s=rng.choice((0.0, 0.001, 0.05)),
        step_timeout_s=rng.choice((10.0, 60.0)),
        sync_interval_s=rng.choice((0.0, 0.0, 0.0, 10.0)),
    )


@dataclass(frozen=True)
class Pace:
    """How many clients of each kind there are, and how much longer they pause than those of the campaign with real
    processes: hours are to be short, and faults to find something under way."""

    num_streams: int = 3
    stream_slowness: float = 60.0
    num_batches: int = 1
    batch_slowness: float = 120.0
    num_files: int = 1
    file_slowness: float = 60.0
    num_keys: int = 1
    key_slowness: float = 60.0
    fault_s: float = 10.0  # between two faults, on average
