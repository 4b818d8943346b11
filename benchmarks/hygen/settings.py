"""The models, machines and loads that the figures are made with."""

from __future__ import annotations

from dataclasses import dataclass

from services.profiler.simulation.setup import Machine


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on its GPUs, and the online rate (requests/s) sampled from the trace, HyGen section 5.1. ``has_long``:
    the trace is the one with long prompts."""

    machine: Machine
    qps: float
    has_long: bool = False

    @property
    def name(self) -> str:
        gpus = "" if self.machine.tensor_parallel == 1 else f"{self.machine.tensor_parallel}x "
        return f"{self.machine.model} on {gpus}{self.machine.device}"


LLAMA = Setting(Machine(model="llama2-7b", device="a100-40g"), qps=1.0)
# One A40 would have room for 18,000 tokens of KV beside the weights: six arXiv summaries.
QWEN = Setting(Machine(model="qwen-14b", device="a40", tensor_parallel=2), qps=0.5)
MISTRAL = Setting(Machine(model="mistral-7b", device="a100-40g"), qps=0.2, has_long=True)

TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5)  # of interference: an SLO of 1.05x to 1.5x of online-only


@dataclass(frozen=True, slots=True)
class Metric:
    """An online latency that SLOs are about. ``name``: as in their expressions."""

    name: str
    label: str

    def slo(self, tolerance: float) -> str:
        """As people write it."""
        return f"{self.name}<={1 + tolerance:g}x"


MEAN_TBT = Metric("tbt_mean", "mean TBT")
P99_TBT = Metric("tbt_p99", "p99 TBT")
MEAN_TTFT = Metric("ttft_mean", "mean TTFT")
P99_TTFT = Metric("ttft_p99", "p99 TTFT")
METRICS = (MEAN_TBT, P99_TBT, MEAN_TTFT, P99_TTFT)
