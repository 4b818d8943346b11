"""Options of the commands that simulate, as groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from loadgen.errors import WorkloadError
from services.profiler.simulation.setup import LIVE, Machine
from shared.latency.architectures import ARCHITECTURES
from shared.latency.devices import DEVICES

SimDurationOption = Annotated[float, typer.Option("--duration", help="Seconds of virtual time.")]
ModelNameOption = Annotated[str, typer.Option("--model", help=", ".join(ARCHITECTURES))]
DeviceOption = Annotated[str, typer.Option(help=", ".join(DEVICES))]
TensorParallelOption = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the model.")]
BatchedTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of one step: the chunk size.")]
NumSeqsOption = Annotated[int, typer.Option(min=1, help="Requests of one step.")]
KvBlocksOption = Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")]
HostKvSlotsOption = Annotated[
    int | None, typer.Option(min=1, help="bidirectional: tokens of KV that the host takes; else as many as the GPU.")
]
StepModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) that steps take, not the roofline.")
]
PlanModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) to plan with; else what steps take.")
]
ExecutorsOption = Annotated[int, typer.Option(min=1, help="Executors, alike, behind one router and one pool.")]
PipelineDepthOption = Annotated[int, typer.Option(min=1, help="Stages of an executor: steps that it has in flight.")]
NoiseOption = Annotated[float, typer.Option(min=0.0, help="Sigma of a lognormal factor on each step's time.")]
ClientsOption = Annotated[
    int, typer.Option(min=1, help="Clients that the trace's requests are from, the k-th sending 1/k of the first's.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """The GPUs and the executors' limits."""

    device: DeviceOption = LIVE.sim_device
    tp: TensorParallelOption = 1
    executors: ExecutorsOption = 1
    pipeline_depth: PipelineDepthOption = 1
    max_num_batched_tokens: BatchedTokensOption = LIVE.max_num_batched_tokens
    max_num_seqs: NumSeqsOption = LIVE.max_num_seqs
    kv_blocks: KvBlocksOption = None
    host_kv_slots: HostKvSlotsOption = None
    step_model: StepModelOption = None
    plan_model: PlanModelOption = None
    noise: NoiseOption = 0.0

    def machine(self, model: str) -> Machine:
        return Machine(
            model,
            self.device,
            self.tp,
            self.max_num_batched_tokens,
            self.max_num_seqs,
            kv_blocks=self.kv_blocks,
            step_file=self.step_model,
            plan_file=self.plan_model,
            noise=self.noise,
            host_kv_slots=self.host_kv_slots,
            executors=self.executors,
            pipeline_depth=self.pipeline_depth,
        )


@contextmanager
def value_errors_as_named() -> Iterator[None]:
    """The pure core's errors, as those of a workload that cannot be."""
    try:
        yield
    except ValueError as error:
        raise WorkloadError(str(error)) from error
