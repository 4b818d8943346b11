"""A simulated executor out of names and files."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadgen.errors import WorkloadError
from services.executor.settings import DEFAULT_BLOCK_SIZE, ExecutorSettings
from shared.latency.architectures import architecture_named
from shared.latency.devices import device_named
from shared.latency.model import LatencyModel
from shared.latency.overlapping import OverlappingLatencyModel
from shared.latency.roofline import RooflineLatencyModel, num_kv_blocks, swap_ms_per_slot
from shared.protocol.codec import decode_record
from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.latency_models import LatencyModelRecord
from shared.scheduling.limits import Limits
from shared.scheduling.packed_prompt import NUM_TOKEN_IDS
from shared.scheduling.step_sizes import LARGEST, USUAL, chosen_sizes
from shared.scheduling.strategy import Strategy
from shared.simulation.link import Link
from shared.simulation.setup import ExecutorSetup

LIVE = ExecutorSettings(model_path="")  # the executor's own defaults


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware, the model and the executor's limits, as ``MachineOptions`` explains them. ``step_model``,
    ``plan_model``: files of fitted coefficients; None is the roofline model, and what steps take. ``overlaps``: the
    roofline's operators overlap, which those of our engines do not. A step's sizes that are None are chosen by the
    model that schedules are made with, as live executors choose theirs."""

    model: str = LIVE.sim_model
    device: str = LIVE.sim_device
    tensor_parallel: int = 1
    max_num_batched_tokens: int | None = USUAL.max_num_batched_tokens
    max_num_seqs: int | None = USUAL.max_num_seqs
    kv_blocks: int | None = None
    step_model: Path | None = None
    plan_model: Path | None = None
    noise: float = 0.0
    host_kv_slots: int | None = None
    executors: int = 1
    strict: int = 0
    pipeline_depth: int = 1
    interrupts: bool = False
    overlaps: bool = False

    def setup(self, strategy: Strategy, seed: int) -> ExecutorSetup:
        """Raises ValueError for unknown names and what does not fit the memory, WorkloadError for unusable files."""
        architecture, device = architecture_named(self.model), device_named(self.device)
        gpus = (architecture, device, self.tensor_parallel)
        num_blocks = self.kv_blocks or num_kv_blocks(*gpus, DEFAULT_BLOCK_SIZE, self.pipeline_depth)
        latency = self._latency_model(RooflineLatencyModel.of(*gpus))
        swap_ms = swap_ms_per_slot(*gpus, self.pipeline_depth)
        spec = EngineSpec(
            model=architecture.name,
            engine="simulated",
            device=f"{self.tensor_parallel}x{device.name}",
            dtype="float16",
            max_model_len=architecture.max_model_len,
            vocab_size=NUM_TOKEN_IDS,  # copies of prompts and outputs have ids beyond the model's
            block_size=DEFAULT_BLOCK_SIZE,
            num_blocks=num_blocks,
            eos_token_ids=(),
            num_host_slots=num_blocks * DEFAULT_BLOCK_SIZE if self.host_kv_slots is None else self.host_kv_slots,
            swap_ms_per_slot=swap_ms,
            pipeline_depth=self.pipeline_depth,
            is_interruptible=self.interrupts and self.pipeline_depth == 1,
            architecture=architecture,
            tensor_parallel=self.tensor_parallel,
        )
        planner = latency if self.plan_model is None else read_latency_model(self.plan_model)
        given = self.max_num_batched_tokens, self.max_num_seqs
        sizes = chosen_sizes(planner, LARGEST.but(*given), num_blocks * DEFAULT_BLOCK_SIZE).but(*given)
        return ExecutorSetup(
            Limits(DEFAULT_BLOCK_SIZE, num_blocks, sizes.max_num_batched_tokens, sizes.max_num_seqs, swap_ms),
            spec,
            strategy,
            planner=planner,
            latency=latency,
            noise=self.noise,
            seed=seed,
            link=Link.of(*gpus),
        )

    def _latency_model(self, roofline: RooflineLatencyModel) -> LatencyModel:
        """What steps take. Raises ValueError for a fitted model that is to overlap."""
        if self.step_model is None:
            return OverlappingLatencyModel(roofline) if self.overlaps else roofline
        if self.overlaps:
            raise ValueError("a fitted model tells what its machine overlaps: leave --overlap or --step-model out")
        return read_latency_model(self.step_model)

    def url(self, strategy: Strategy) -> str:
        """Says in a report what was simulated."""
        machine = {"executors": self.executors, "strict": self.strict, "pipeline_depth": self.pipeline_depth}
        usual = {"executors": 1, "strict": 0, "pipeline_depth": 1}
        changed: dict[str, str | int | float] = {n: v for n, v in machine.items() if v != usual[n]}
        changed |= ({"overlaps": "yes"} if self.overlaps else {}) | strategy.changes()
        values = ((n, f"{v:g}" if isinstance(v, float) else v) for n, v in changed.items())
        changes = "".join(f"&{name}={value}" for name, value in values)
        return f"sim://{self.tensor_parallel}x{self.device}?preset={strategy.preset}{changes}"


def read_latency_model(path: Path) -> LatencyModel:
    """Of a LatencyModelRecord in JSON, as the predictor publishes it. Raises WorkloadError."""
    try:
        return decode_record(path.read_bytes(), LatencyModelRecord).latency_model()
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise WorkloadError(f"{path}: not a latency model record: {error}") from error
