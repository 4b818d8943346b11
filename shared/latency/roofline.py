"""The roofline model of a model on a device (OOCO section 3.3): each operator takes as long as its computing or its
memory traffic, whichever is longer, and a step is the sum of its operators."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shared.latency.architectures import Architecture
from shared.latency.device_rates import LINK_REACHED, DeviceRates
from shared.latency.devices import Device
from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import longest_chunk
from shared.latency.operators import (
    ALL_REDUCES_PER_LAYER,
    BatchWork,
    OperatorSizes,
    OperatorWork,
    kv_heads_per_device,
)

STEP_OVERHEAD_MS = 1.0  # O_p and O_d of a named GPU
ALL_REDUCE_MS = 0.01  # what one all-reduce takes however little it carries

MEMORY_SHARE = 0.9  # of a GPU's memory, for weights and KV together
NEVER_SATURATED = 1 << 30  # decodes; no batch has as many


@dataclass(frozen=True, slots=True)
class RooflineLatencyModel:
    """T = GEMM(tokens) + output projection(requests) + prefill attention(S_p, pairs) + decode attention(S_d)
    + all-reduces + overhead, in milliseconds; every term grows with its arguments.

    ``tensor_parallel`` devices have an equal share of every matrix and of the heads; the overhead of a step with
    prefills and decodes is the longer one of theirs. Raises ValueError where the heads cannot be shared out, and for
    several devices without the rate of their links.
    """

    architecture: Architecture
    rates: DeviceRates
    tensor_parallel: int = 1
    ms_per_token_compute: float = field(init=False, compare=False)  # GEMMs of all layers
    weights_ms: float = field(init=False, compare=False)  # reading the layers' weights once
    ms_per_token_memory: float = field(init=False, compare=False)  # GEMM activations in and out
    ms_per_request_compute: float = field(init=False, compare=False)  # output projection
    head_ms: float = field(init=False, compare=False)  # reading its weights once
    ms_per_pair: float = field(init=False, compare=False)  # prefill attention, computing: one query and one key
    ms_per_prefill_token_memory: float = field(init=False, compare=False)  # and its queries, keys, values, outputs
    ms_per_kv_token: float = field(init=False, compare=False)  # decode attention: the longer of reading and computing
    ms_per_token_link: float = field(init=False, compare=False)  # all-reduces

    def __post_init__(self) -> None:
        sizes, rates = OperatorSizes.of(self.architecture, self.tensor_parallel), self.rates
        if self.tensor_parallel > 1 and rates.link_bytes_per_ms is None:
            raise ValueError(f"{self.tensor_parallel} devices share {self.architecture.name}: give link_bytes_per_ms")
        derived = {
            "ms_per_token_compute": sizes.gemm_flops_per_token / rates.gemm_flops_per_ms,
            "weights_ms": sizes.gemm_weight_bytes / rates.gemm_bytes_per_ms,
            "ms_per_token_memory": sizes.gemm_bytes_per_token / rates.gemm_bytes_per_ms,
            "ms_per_request_compute": sizes.head_flops_per_request / rates.gemm_flops_per_ms,
            "head_ms": sizes.head_weight_bytes / rates.gemm_bytes_per_ms,
            "ms_per_pair": sizes.flops_per_pair / rates.prefill_attention_flops_per_ms,
            "ms_per_prefill_token_memory": sizes.prefill_bytes_per_token / rates.attention_bytes_per_ms,
            "ms_per_kv_token": max(
                sizes.kv_bytes / rates.attention_bytes_per_ms,
                sizes.flops_per_pair / rates.decode_attention_flops_per_ms,
            ),
            "ms_per_token_link": sizes.link_bytes_per_token / (rates.link_bytes_per_ms or math.inf),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, architecture: Architecture, device: Device, tensor_parallel: int = 1) -> RooflineLatencyModel:
        """Of named GPUs. Raises ValueError where the heads cannot be shared out."""
        all_reduces_ms = ALL_REDUCES_PER_LAYER * architecture.num_layers * ALL_REDUCE_MS if tensor_parallel > 1 else 0.0
        rates = DeviceRates.of_data_sheet(device, STEP_OVERHEAD_MS + all_reduces_ms)
        return cls(architecture, rates, tensor_parallel)

    def predict_ms(self, features: BatchFeatures) -> float:
        return self.time_ms(*features.sums)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        """In a term or two: prefill attention stays as it is."""
        n_p, n_d = features.prefill_requests, features.decode_requests
        requests = n_p + n_d
        if requests == 0:
            return self.time_ms(0, 0, context_len, 1, 0)
        tokens = features.prefill_tokens + n_d
        gemm_ms = self._gemm_ms(tokens + 1) - self._gemm_ms(tokens)
        head_ms = max((requests + 1) * self.ms_per_request_compute, self.head_ms)
        head_ms -= max(requests * self.ms_per_request_compute, self.head_ms)
        cost_ms = gemm_ms + head_ms + context_len * self.ms_per_kv_token + self.ms_per_token_link
        return cost_ms if n_d else cost_ms + (self.overhead_ms(n_p, 1) - self.overhead_ms(n_p, 0))

    def prefill_cost_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        return self._with_prefill_ms(features, num_tokens, num_computed_tokens) - self.predict_ms(features)

    def max_prefill_tokens(
        self, features: BatchFeatures, num_computed_tokens: int, budget_ms: float, limit: int
    ) -> int:
        before_ms = self.predict_ms(features)

        def cost_ms(num_tokens: int) -> float:
            return self._with_prefill_ms(features, num_tokens, num_computed_tokens) - before_ms

        return longest_chunk(cost_ms, budget_ms, limit)

    def _with_prefill_ms(self, features: BatchFeatures, num_tokens: int, num_computed_tokens: int) -> float:
        s_p, n_p, s_d, n_d, pairs = features.sums
        pairs += attention_pairs(num_tokens, num_computed_tokens)
        return self.time_ms(s_p + num_tokens, n_p + 1, s_d, n_d, pairs)

    def work(self, features: BatchFeatures) -> BatchWork:
        """Of a batch that is not empty: what each operator computes and moves."""
        s_p, n_p, s_d, n_d, pairs = features.sums
        tokens, rates = s_p + n_d, self.rates
        sizes = OperatorSizes.of(self.architecture, self.tensor_parallel)

        def operator(flops: float, memory_bytes: float, flops_per_ms: float, bytes_per_ms: float) -> OperatorWork:
            return OperatorWork(flops, memory_bytes, flops / flops_per_ms, memory_bytes / bytes_per_ms)

        def gemm(flops: float, memory_bytes: float) -> OperatorWork:
            return operator(flops, memory_bytes, rates.gemm_flops_per_ms, rates.gemm_bytes_per_ms)

        return BatchWork(
            gemm(tokens * sizes.gemm_flops_per_token, sizes.gemm_weight_bytes + tokens * sizes.gemm_bytes_per_token),
            gemm((n_p + n_d) * sizes.head_flops_per_request, sizes.head_weight_bytes),
            operator(
                pairs * sizes.flops_per_pair,
                s_p * sizes.prefill_bytes_per_token,
                rates.prefill_attention_flops_per_ms,
                rates.attention_bytes_per_ms,
            ),
            operator(
                s_d * sizes.flops_per_pair,
                s_d * sizes.kv_bytes,
                rates.decode_attention_flops_per_ms,
                rates.attention_bytes_per_ms,
            ),
            tokens * self.ms_per_token_link,
            self.overhead_ms(n_p, n_d),
        )

    @property
    def saturated_batch_size(self) -> int:
        """bs_sat of OOCO's Algorithm 1: from so many decodes on, the layers' GEMMs are bound by computing (section
        3.3.3), and compute no less than a step's overhead: more decodes hardly make a token cheaper. The latter is ours
        and says more only where the overhead is longer than the reading of the weights. NEVER_SATURATED where
        activations take longer than the computing."""
        compute_ms = self.ms_per_token_compute
        gain_ms = compute_ms - self.ms_per_token_memory
        bound = self.weights_ms / gain_ms if gain_ms > 0 else NEVER_SATURATED
        size = max(bound, self.rates.decode_overhead_ms / compute_ms)
        return max(1, math.ceil(min(size, NEVER_SATURATED)))

    def scaled(self, factor: float) -> RooflineLatencyModel:
        """The same batches, each ``factor`` times as long."""
        return RooflineLatencyModel(self.architecture, self.rates.scaled(factor), self.tensor_parallel)

    def overhead_ms(self, n_p: int, n_d: int) -> float:
        """Of a step with so many prefills and decodes."""
        of_prefill, of_decode = self.rates.prefill_overhead_ms, self.rates.decode_overhead_ms
        if not n_d:
            return of_prefill if n_p else 0.0
        return of_prefill if n_p and of_prefill > of_decode else of_decode

    def traffic_ms(self, s_p: int, tokens: int) -> float:
        """What a step of ``tokens``, of which ``s_p`` of prompts, reads and writes beside the KV that its decodes
        read."""
        matrices_ms = self.weights_ms + self.head_ms + tokens * self.ms_per_token_memory
        return matrices_ms + s_p * self.ms_per_prefill_token_memory

    def _gemm_ms(self, tokens: int) -> float:
        compute_ms = tokens * self.ms_per_token_compute
        memory_ms = self.weights_ms + tokens * self.ms_per_token_memory
        return compute_ms if compute_ms > memory_ms else memory_ms

    def time_ms(self, s_p: int, n_p: int, s_d: int, n_d: int, pairs: int) -> float:
        """Of ``BatchFeatures.sums``."""
        requests = n_p + n_d
        if requests == 0:
            return 0.0
        tokens = s_p + n_d
        head_compute_ms = requests * self.ms_per_request_compute
        pairs_ms = pairs * self.ms_per_pair
        prefill_memory_ms = s_p * self.ms_per_prefill_token_memory
        return (
            self.overhead_ms(n_p, n_d)
            + self._gemm_ms(tokens)
            + (head_compute_ms if head_compute_ms > self.head_ms else self.head_ms)
            + (pairs_ms if pairs_ms > prefill_memory_ms else prefill_memory_ms)
            + s_d * self.ms_per_kv_token
            + tokens * self.ms_per_token_link
        )


def swap_ms_per_slot(architecture: Architecture, device: Device, tensor_parallel: int = 1, stages: int = 1) -> float:
    """What a KV slot takes between a GPU and its host: t_swap of BROS (section 4.1), linear in the slots. Slots are
    copied beside a step's execution (``shared.replica.returning``), so that the next step waits for the rest alone;
    each GPU swaps its own heads of its own layers. Raises ValueError where the heads cannot be shared out."""
    slot_bytes = _kv_bytes_per_device(architecture, tensor_parallel, stages)
    return slot_bytes / (device.host_bytes_per_s * LINK_REACHED / 1e3)


def num_kv_blocks(
    architecture: Architecture, device: Device, tensor_parallel: int, block_size: int, stages: int = 1
) -> int:
    """KV blocks that fit beside the weights, of which each of the ``stages`` of a pipeline has an equal share. Raises
    ValueError where not even one does."""
    weight_bytes = architecture.parameters * architecture.bytes_per_value / (tensor_parallel * stages)
    token_bytes = _kv_bytes_per_device(architecture, tensor_parallel, stages)
    num_blocks = int((device.memory_bytes * MEMORY_SHARE - weight_bytes) / (token_bytes * block_size))
    if num_blocks < 1:
        raise ValueError(
            f"{architecture.name} needs {weight_bytes / 1e9:.1f} GB of weights on each of {tensor_parallel * stages} "
            f"{device.name}, of which {device.memory_bytes * MEMORY_SHARE / 1e9:.1f} GB can be used: "
            "share it among more GPUs (tensor parallel)"
        )
    return num_blocks


def _kv_bytes_per_device(architecture: Architecture, tensor_parallel: int, stages: int) -> float:
    """Of one token."""
    kv_heads = kv_heads_per_device(architecture, tensor_parallel)
    return architecture.kv_bytes_per_token / architecture.num_kv_heads * kv_heads / stages
