"""Options of the commands that simulate, as groups."""

from __future__ import annotations

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
from shared.scheduling.kv.policy import KV_POLICIES
from shared.scheduling.orders.online.registry import ONLINE_ORDERS
from shared.scheduling.packing.token_slo import TokenSlo
from shared.scheduling.presets import DEFAULT_UTILITY_RATIO, OWN_KV_POLICY, PRESETS

SimDurationOption = Annotated[float, typer.Option("--duration", help="Seconds of virtual time.")]
ModelNameOption = Annotated[str, typer.Option("--model", help=", ".join(ARCHITECTURES))]
DeviceOption = Annotated[str, typer.Option(help=", ".join(DEVICES))]
TensorParallelOption = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share the model.")]
PresetOption = Annotated[str, typer.Option(help=", ".join(PRESETS))]
BudgetOption = Annotated[float | None, typer.Option(min=0.0, help="Latency budget of a step, for hygen.")]
IdleBudgetOption = Annotated[
    float, typer.Option(min=0.0, help="That of a step while no online request is there, where it is more.")
]
OfflineQpsOption = Annotated[float | None, typer.Option(help="Offline requests per second, for hygen-star.")]
BatchedTokensOption = Annotated[int, typer.Option(min=1, help="Tokens of one step: the chunk size.")]
NumSeqsOption = Annotated[int, typer.Option(min=1, help="Requests of one step.")]
KvBlocksOption = Annotated[int | None, typer.Option(min=1, help="KV blocks; else what fits beside the weights.")]
KvPolicyOption = Annotated[str, typer.Option(help=", ".join((*KV_POLICIES, f"{OWN_KV_POLICY}: its own")))]
HostKvSlotsOption = Annotated[
    int | None, typer.Option(min=1, help="bidirectional: tokens of KV that the host takes; else as many as the GPU.")
]
StepModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) that steps take, not the roofline.")
]
PlanModelOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A fitted latency model (JSON) to plan with; else what steps take.")
]
NoiseOption = Annotated[float, typer.Option(min=0.0, help="Sigma of a lognormal factor on each step's time.")]
UtilityRatioOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="The share of offline requests chosen by shared prefix, not by age.")
]
TtftSloOption = Annotated[float, typer.Option(min=0.001, help="bros: a first token is due so long after arrival.")]
TpotSloOption = Annotated[float, typer.Option(min=0.001, help="bros: a later token is due so long after the last.")]
GroupTokensOption = Annotated[int, typer.Option(min=1, help="bros: later tokens are due in groups of so many.")]
OnlineOrderOption = Annotated[str, typer.Option(help=", ".join(ONLINE_ORDERS))]
ClientsOption = Annotated[
    int, typer.Option(min=1, help="Clients that the trace's requests are from, the k-th sending 1/k of the first's.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """The GPU and the executor's limits."""

    device: DeviceOption = LIVE.sim_device
    tp: TensorParallelOption = 1
    max_num_batched_tokens: BatchedTokensOption = LIVE.max_num_batched_tokens
    max_num_seqs: NumSeqsOption = LIVE.max_num_seqs
    kv_blocks: KvBlocksOption = None
    kv_policy: KvPolicyOption = LIVE.kv_policy
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
            kv_policy=self.kv_policy,
            host_kv_slots=self.host_kv_slots,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOptions:
    """The preset, the orders' settings, and what a search for the budget leaves as it is."""

    preset: PresetOption = "hygen"
    utility_ratio: UtilityRatioOption = DEFAULT_UTILITY_RATIO
    idle_budget_ms: IdleBudgetOption = 0.0
    online_order: OnlineOrderOption = "fcfs"
    clients: ClientsOption = 1
    ttft_slo_ms: TtftSloOption = LIVE.ttft_slo_ms
    tpot_slo_ms: TpotSloOption = LIVE.tpot_slo_ms
    slo_group_tokens: GroupTokensOption = LIVE.slo_group_tokens

    @property
    def token_slo(self) -> TokenSlo:
        """By which deadlines go."""
        return TokenSlo(self.ttft_slo_ms, self.tpot_slo_ms, self.slo_group_tokens)


@contextmanager
def value_errors_as_named() -> Iterator[None]:
    """The pure core's errors, as those of a workload that cannot be."""
    try:
        yield
    except ValueError as error:
        raise WorkloadError(str(error)) from error
