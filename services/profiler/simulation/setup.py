"""A simulated executor out of names and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.errors import WorkloadError
from services.executor.settings import DEFAULT_BLOCK_SIZE, ExecutorSettings
from services.profiler.simulation.strategy import Strategy
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks
from shared.latency.swap import SwapModel
from shared.protocol.latency_models import LatencyModelRecord
from shared.replica.engine import EngineSpec
from shared.scheduling.batch import Limits
from shared.scheduling.packing.token_slo import TokenSlo
from shared.scheduling.presets import DEFAULT_UTILITY_RATIO, preset_named
from shared.simulation.setup import ExecutorSetup

LIVE = ExecutorSettings(model_path="")  # the executor's own defaults


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware, the model and the executor's limits. ``step_file``: fitted coefficients that steps take;
    ``plan_file``: those that plans are made with. None is the roofline model, and what steps take. ``host_kv_slots``:
    of the bidirectional KV policy; None is as many as the blocks have."""

    model: str = LIVE.sim_model
    device: str = LIVE.sim_device
    tensor_parallel: int = 1
    max_num_batched_tokens: int = LIVE.max_num_batched_tokens
    max_num_seqs: int = LIVE.max_num_seqs
    block_size: int = DEFAULT_BLOCK_SIZE
    kv_blocks: int | None = None
    step_file: Path | None = None
    plan_file: Path | None = None
    noise: float = 0.0
    kv_policy: str = LIVE.kv_policy
    host_kv_slots: int | None = None

    def setup(self, strategy: Strategy, seed: int) -> ExecutorSetup:
        """Raises ValueError for unknown names and what does not fit the memory, WorkloadError for unusable files."""
        architecture, device = architecture_named(self.model), device_named(self.device)
        num_blocks = self.kv_blocks or num_kv_blocks(architecture, device, self.tensor_parallel, self.block_size)
        latency: LatencyModel = (
            RooflineLatencyModel.of(architecture, device, self.tensor_parallel)
            if self.step_file is None
            else read_latency_model(self.step_file)
        )
        swap = SwapModel.of(architecture, device, self.tensor_parallel)
        spec = EngineSpec(
            model=architecture.name,
            engine="simulated",
            device=f"{self.tensor_parallel}x{device.name}",
            dtype="float16",
            max_model_len=architecture.max_model_len,
            vocab_size=architecture.vocab_size,
            block_size=self.block_size,
            num_blocks=num_blocks,
            eos_token_ids=(),
            num_host_slots=num_blocks * self.block_size if self.host_kv_slots is None else self.host_kv_slots,
        )
        return ExecutorSetup(
            Limits(self.block_size, num_blocks, self.max_num_batched_tokens, self.max_num_seqs, swap.ms_per_slot),
            spec,
            strategy.policy(),
            planner=latency if self.plan_file is None else read_latency_model(self.plan_file),
            latency=latency,
            noise=self.noise,
            seed=seed,
            kv_policy=strategy.preset.kv_policy_named(self.kv_policy),
            swap=swap,
            slo=strategy.slo,
            online_order=strategy.online_order,
        )

    def url(self, strategy: Strategy) -> str:
        """Says in a report what was simulated."""
        budget = "" if strategy.budget_ms is None else f"&budget_ms={strategy.budget_ms:g}"
        budget += f"&idle_budget_ms={strategy.idle_budget_ms:g}" if strategy.idle_budget_ms else ""
        rate = "" if strategy.offline_qps is None else f"&offline_qps={strategy.offline_qps:g}"
        policy = "" if self.kv_policy == LIVE.kv_policy else f"&kv_policy={self.kv_policy}"
        return f"sim://{self.tensor_parallel}x{self.device}?preset={strategy.preset.name}{budget}{rate}{policy}"


def make_strategy(
    preset_name: str,
    budget_ms: float | None,
    offline_qps: float | None,
    utility_ratio: float = DEFAULT_UTILITY_RATIO,
    online_order: str = "fcfs",
    slo: TokenSlo | None = None,
    idle_budget_ms: float = 0.0,
) -> Strategy:
    """Raises ValueError for an unknown preset or order, and for a knob that is missing or not the preset's."""
    preset = preset_named(preset_name)
    if preset.uses_latency_budget and budget_ms is None:
        raise ValueError(f"preset {preset.name} holds offline work to a latency budget: give --budget-ms")
    if budget_ms is not None and not preset.uses_latency_budget:
        raise ValueError(f"preset {preset.name} has no latency budget: leave --budget-ms out")
    preset.offline_rate(offline_qps)
    strategy = Strategy(preset, budget_ms, offline_qps, utility_ratio, online_order, slo or TokenSlo(), idle_budget_ms)
    strategy.check_orders()
    return strategy


def read_latency_model(path: Path) -> LatencyModel:
    """Of a LatencyModelRecord in JSON, as the predictor publishes it. Raises WorkloadError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=LatencyModelRecord).latency_model()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise WorkloadError(f"{path}: not a latency model record: {error}") from error
