"""The roofline model of a named GPU and model (OOCO section 3.3): each operator takes as long as its computing or its
memory traffic, whichever is longer, and a step is the sum of its operators."""

from __future__ import annotations

from dataclasses import dataclass

from shared.latency.architectures import HALF_PRECISION_BYTES, Architecture
from shared.latency.devices import Device
from shared.latency.features import BatchFeatures, attention_pairs
from shared.latency.model import longest_chunk

# What kernels reach of the data sheet's figures: F_g, F_ap, F_ad, M_g, M_a and B_c of OOCO's Table 4 as shares.
GEMM_FLOPS_REACHED = 0.6
PREFILL_ATTENTION_FLOPS_REACHED = 0.5
DECODE_ATTENTION_FLOPS_REACHED = 0.25  # one query a head leaves most of a tensor core's tile empty
MEMORY_REACHED = 0.8
LINK_REACHED = 0.8
STEP_OVERHEAD_MS = 1.0  # O_p and O_d: launches and the engine's own work around the forward pass
ALL_REDUCE_MS = 0.01  # what one all-reduce takes however little it carries
ALL_REDUCES_PER_LAYER = 2  # after attention and after the MLP

MEMORY_SHARE = 0.9  # of a GPU's memory, for weights and KV together


@dataclass(frozen=True, slots=True)
class RooflineLatencyModel:
    """T = GEMM(tokens) + output projection(requests) + prefill attention(S_p, pairs) + decode attention(S_d)
    + all-reduces + overhead, in milliseconds; every term grows with its arguments.

    A batch's prefill and decode tokens share one pass over the weights. Prefill attention computes each chunk's
    query-key pairs, those with earlier chunks included; of its memory traffic the KV of earlier chunks is left out,
    which the features do not tell.
    """

    ms_per_token_compute: float  # GEMMs of all layers
    weights_ms: float  # reading the layers' weights once
    ms_per_token_memory: float  # GEMM activations in and out
    ms_per_request_compute: float  # output projection
    head_ms: float  # reading its weights once
    ms_per_pair: float  # prefill attention, computing: one query and one key
    ms_per_prefill_token_memory: float  # prefill attention: queries, keys, values, outputs
    ms_per_kv_token: float  # decode attention: the longer of reading keys and values and computing with them
    ms_per_token_link: float  # all-reduces
    fixed_ms: float  # overhead of a step

    @classmethod
    def of(cls, architecture: Architecture, device: Device, tensor_parallel: int = 1) -> RooflineLatencyModel:
        """``tensor_parallel`` GPUs with an equal share of every matrix and of the heads. Raises ValueError where the
        heads cannot be shared out."""
        kv_heads = kv_heads_per_device(architecture, tensor_parallel)
        heads = architecture.num_heads // tensor_parallel
        flops_per_ms = device.half_flops_per_s / 1e3
        bytes_per_ms = device.memory_bytes_per_s * MEMORY_REACHED / 1e3
        gemm_flops_per_ms = flops_per_ms * GEMM_FLOPS_REACHED
        layers = architecture.num_layers
        layer_parameters = layers * architecture.layer_parameters / tensor_parallel
        head_parameters = architecture.head_parameters / tensor_parallel
        attention_flops = 4 * architecture.head_dim * heads * layers  # of one query and one key: QK^T and PV
        kv_bytes = 2 * layers * kv_heads * architecture.head_dim * HALF_PRECISION_BYTES
        query_bytes = 2 * layers * heads * architecture.head_dim * HALF_PRECISION_BYTES
        decode_compute = attention_flops / (flops_per_ms * DECODE_ATTENTION_FLOPS_REACHED)
        return cls(
            ms_per_token_compute=2 * layer_parameters / gemm_flops_per_ms,
            weights_ms=layer_parameters * HALF_PRECISION_BYTES / bytes_per_ms,
            ms_per_token_memory=_activation_bytes(architecture, tensor_parallel) / bytes_per_ms,
            ms_per_request_compute=2 * head_parameters / gemm_flops_per_ms,
            head_ms=head_parameters * HALF_PRECISION_BYTES / bytes_per_ms,
            ms_per_pair=attention_flops / (flops_per_ms * PREFILL_ATTENTION_FLOPS_REACHED),
            ms_per_prefill_token_memory=(query_bytes + kv_bytes) / bytes_per_ms,
            ms_per_kv_token=max(kv_bytes / bytes_per_ms, decode_compute),
            ms_per_token_link=_link_ms_per_token(architecture, device, tensor_parallel),
            fixed_ms=STEP_OVERHEAD_MS
            + (ALL_REDUCES_PER_LAYER * layers * ALL_REDUCE_MS if tensor_parallel > 1 else 0.0),
        )

    def predict_ms(self, features: BatchFeatures) -> float:
        return self.time_ms(*features.sums)

    def decode_cost_ms(self, features: BatchFeatures, context_len: int) -> float:
        """In a term or two: prefill attention stays as it is."""
        requests = features.prefill_requests + features.decode_requests
        if requests == 0:
            return self.time_ms(0, 0, context_len, 1, 0)
        tokens = features.prefill_tokens + features.decode_requests
        gemm_ms = self._gemm_ms(tokens + 1) - self._gemm_ms(tokens)
        head_ms = max((requests + 1) * self.ms_per_request_compute, self.head_ms)
        head_ms -= max(requests * self.ms_per_request_compute, self.head_ms)
        return gemm_ms + head_ms + context_len * self.ms_per_kv_token + self.ms_per_token_link

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
            self.fixed_ms
            + self._gemm_ms(tokens)
            + (head_compute_ms if head_compute_ms > self.head_ms else self.head_ms)
            + (pairs_ms if pairs_ms > prefill_memory_ms else prefill_memory_ms)
            + s_d * self.ms_per_kv_token
            + tokens * self.ms_per_token_link
        )


def kv_heads_per_device(architecture: Architecture, tensor_parallel: int) -> int:
    """KV heads that each GPU holds; they are repeated where there are more GPUs than KV heads. Raises ValueError."""
    heads, kv_heads = architecture.num_heads, architecture.num_kv_heads
    if (
        tensor_parallel < 1
        or heads % tensor_parallel
        or max(kv_heads, tensor_parallel) % min(kv_heads, tensor_parallel)
    ):
        raise ValueError(
            f"{heads} heads and {kv_heads} KV heads of {architecture.name} cannot be shared by {tensor_parallel} "
            "GPUs; use 1, 2, 4 or 8"
        )
    return max(1, kv_heads // tensor_parallel)


def swap_ms_per_slot(architecture: Architecture, device: Device, tensor_parallel: int = 1) -> float:
    """What a KV slot takes between a GPU and its host: t_swap of BROS (section 4.1), linear in the slots. Slots are
    copied beside a step's execution (``shared.replica.returning``), so that the next step waits for the rest alone;
    each GPU swaps its own heads. Raises ValueError where those cannot be shared out."""
    kv_heads = kv_heads_per_device(architecture, tensor_parallel)
    slot_bytes = architecture.kv_bytes_per_token / architecture.num_kv_heads * kv_heads
    return slot_bytes / (device.host_bytes_per_s * LINK_REACHED / 1e3)


def num_kv_blocks(architecture: Architecture, device: Device, tensor_parallel: int, block_size: int) -> int:
    """KV blocks that fit beside the weights. Raises ValueError where not even one does."""
    kv_heads = kv_heads_per_device(architecture, tensor_parallel)
    weight_bytes = architecture.parameters * HALF_PRECISION_BYTES / tensor_parallel
    token_bytes = architecture.kv_bytes_per_token / architecture.num_kv_heads * kv_heads
    num_blocks = int((device.memory_bytes * MEMORY_SHARE - weight_bytes) / (token_bytes * block_size))
    if num_blocks < 1:
        raise ValueError(
            f"{architecture.name} needs {weight_bytes / 1e9:.1f} GB of weights on each of {tensor_parallel} "
            f"{device.name}, of which {device.memory_bytes * MEMORY_SHARE / 1e9:.1f} GB can be used: "
            "share it among more GPUs (tensor parallel)"
        )
    return num_blocks


def _activation_bytes(architecture: Architecture, tensor_parallel: int) -> float:
    """Inputs and outputs of a layer's GEMMs for one token (OOCO Table 3), on one GPU, over all layers."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size / tensor_parallel
    kv_heads = kv_heads_per_device(architecture, tensor_parallel)
    queries = architecture.head_dim * architecture.num_heads / tensor_parallel
    qkv = hidden + queries + 2 * architecture.head_dim * kv_heads
    output = queries + hidden
    mlp = hidden + (architecture.num_mlp_matrices - 1) * inner + inner + hidden
    return architecture.num_layers * (qkv + output + mlp) * HALF_PRECISION_BYTES


def _link_ms_per_token(architecture: Architecture, device: Device, tensor_parallel: int) -> float:
    """A ring all-reduce sends 2 (p - 1) / p of its data over each link."""
    token_bytes = ALL_REDUCES_PER_LAYER * architecture.num_layers * architecture.hidden_size * HALF_PRECISION_BYTES
    share = 2 * (tensor_parallel - 1) / tensor_parallel
    return token_bytes * share / (device.link_bytes_per_s * LINK_REACHED / 1e3)
