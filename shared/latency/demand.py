"""What requests demand of a device, in milliseconds of its computing and of its memory (BlendServe section 2.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.latency.architectures import Architecture
from shared.latency.devices import Device
from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import LatencyModel
from shared.latency.roofline import RooflineLatencyModel

PROBED_TOKENS = 512  # of a chunk by which a model is asked
PROBED_CONTEXT = 1024  # tokens of KV that this chunk, or a decode, has more or less of


@dataclass(frozen=True, slots=True)
class Demand:
    """Of a request, or of several together."""

    compute_ms: float = 0.0  # T_comp: of operators that are bound by computing
    memory_ms: float = 0.0  # T_mem: of those that are bound by memory

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.compute_ms + other.compute_ms, self.memory_ms + other.memory_ms)

    def times(self, count: float) -> Demand:
        """Of so many like this."""
        return Demand(self.compute_ms * count, self.memory_ms * count)

    def shared(self, share: float) -> Demand:
        """With this share of the computing found in the prefix cache: (1 - s) T_comp and T_mem, sections 2.4 and 3.2.
        Raises ValueError for a share outside 0 to 1."""
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} is shared; it must be between 0 and 1")
        return Demand((1 - share) * self.compute_ms, self.memory_ms)

    @property
    def density(self) -> float:
        """rho, the compute density: above 1 it is bound by computing. Infinite where memory has nothing to do."""
        return self.compute_ms / self.memory_ms if self.memory_ms else math.inf


@dataclass(frozen=True, slots=True)
class DemandModel:
    """What a token, a query-key pair and a KV token take on one device, each in milliseconds of its own resource."""

    ms_per_token: float  # all matrices, of prompts and outputs
    ms_per_output: float  # what a token of an output takes beyond that: the output projection
    ms_per_pair: float  # prefill attention: one query and one key
    ms_per_read: float  # decode attention: keys and values of one token

    @classmethod
    def of(cls, architecture: Architecture, device: Device, tensor_parallel: int = 1) -> DemandModel:
        """By what kernels reach of the data sheet: the figures of the roofline model. Raises ValueError as that."""
        return cls.of_roofline(RooflineLatencyModel.of(architecture, device, tensor_parallel))

    @classmethod
    def of_roofline(cls, model: RooflineLatencyModel) -> DemandModel:
        """Its own figures, exactly."""
        return cls(model.ms_per_token_compute, model.ms_per_request_compute, model.ms_per_pair, model.ms_per_kv_token)

    @classmethod
    def of_data_sheet(cls, architecture: Architecture, device: Device) -> DemandModel:
        """As the paper counts: all parameters for each token, the embedding with them, attention without a causal mask,
        4 p^2 H L, and all that the data sheet promises. Its densities are lower than those of ``of`` by what kernels
        reach less of the FLOP/s than of the bandwidth."""
        flops_per_ms, bytes_per_ms = device.half_flops_per_s / 1e3, device.memory_bytes_per_s / 1e3
        heads = architecture.num_heads * architecture.head_dim
        return cls(
            ms_per_token=2 * architecture.parameters / flops_per_ms,
            ms_per_output=0.0,
            ms_per_pair=8 * heads * architecture.num_layers / flops_per_ms,  # pairs are half of p^2
            ms_per_read=architecture.kv_bytes_per_token / bytes_per_ms,
        )

    @classmethod
    def measured(cls, model: LatencyModel, probed_tokens: int = PROBED_TOKENS) -> DemandModel:
        """By any latency model, as one that was fitted to the profiler's sweep of the device at hand: what a chunk and
        a decode add to a step that computes a chunk of ``probed_tokens`` already, so that it has read the weights. The
        output projection is in what a token takes, as no model tells it apart."""
        step = BatchFeatures()
        step.add_prefill(probed_tokens, 0)
        first_ms = model.prefill_cost_ms(step, probed_tokens, 0)
        late_ms = model.prefill_cost_ms(step, probed_tokens, PROBED_CONTEXT)
        ms_per_pair = max(0.0, late_ms - first_ms) / (probed_tokens * PROBED_CONTEXT)
        tokens_ms = first_ms - ms_per_pair * attention_pairs(probed_tokens, 0)
        reads_ms = model.decode_cost_ms(step, 2 * PROBED_CONTEXT) - model.decode_cost_ms(step, PROBED_CONTEXT)
        return cls(max(0.0, tokens_ms) / probed_tokens, 0.0, ms_per_pair, max(0.0, reads_ms) / PROBED_CONTEXT)

    def request(self, num_prompt_tokens: int, num_output_tokens: int, num_shared_tokens: int = 0) -> Demand:
        """Comp(r) and Mem(r), p d + d^2 / 2 KV tokens read. ``num_shared_tokens``: so many at the prompt's beginning
        are another's to compute."""
        computed = num_prompt_tokens - num_shared_tokens
        compute_ms = (computed + num_output_tokens) * self.ms_per_token + num_output_tokens * self.ms_per_output
        compute_ms += attention_pairs(computed, num_shared_tokens) * self.ms_per_pair
        return Demand(compute_ms, num_reads(num_prompt_tokens, num_output_tokens) * self.ms_per_read)


def num_reads(num_prompt_tokens: int, num_output_tokens: int) -> float:
    """KV tokens that a request's decodes read, together."""
    return num_output_tokens * (num_prompt_tokens + num_output_tokens / 2)
