"""The work of a model's operators (OOCO section 3.3.1, Table 3), that of a batch, and which resource it waits for."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from shared.latency.architectures import Architecture

ALL_REDUCES_PER_LAYER = 2  # after attention and after the MLP


@dataclass(frozen=True, slots=True)
class OperatorSizes:
    """What a token, a request, a query-key pair and a KV token add to the operators of all layers, on one of the
    devices that share the model.

    A batch's prefill and decode tokens share one pass over the weights. Prefill attention computes each chunk's
    query-key pairs, those with earlier chunks included; of its memory traffic the KV of earlier chunks is left out,
    which the features of a batch do not tell.
    """

    gemm_flops_per_token: float
    gemm_weight_bytes: float
    gemm_bytes_per_token: float  # inputs and outputs
    head_flops_per_request: float  # the output projection
    head_weight_bytes: float
    flops_per_pair: int  # attention of one query and one key: QK^T and PV
    prefill_bytes_per_token: int  # prefill attention: queries, keys, values, outputs
    kv_bytes: int  # decode attention: keys and values of a KV token
    link_bytes_per_token: float  # all-reduces

    @classmethod
    def of(cls, architecture: Architecture, tensor_parallel: int = 1) -> OperatorSizes:
        """Each of ``tensor_parallel`` devices has an equal share of every matrix and of the heads. Raises ValueError
        where the heads cannot be shared out."""
        kv_heads = kv_heads_per_device(architecture, tensor_parallel)
        heads = architecture.num_heads // tensor_parallel
        layers, value_bytes = architecture.num_layers, architecture.bytes_per_value
        layer_parameters = layers * architecture.layer_parameters / tensor_parallel
        head_parameters = architecture.head_parameters / tensor_parallel
        kv_bytes = 2 * layers * kv_heads * architecture.head_dim * value_bytes
        query_bytes = 2 * layers * heads * architecture.head_dim * value_bytes
        reduced_bytes = ALL_REDUCES_PER_LAYER * layers * architecture.hidden_size * value_bytes
        return cls(
            gemm_flops_per_token=2 * layer_parameters,
            gemm_weight_bytes=layer_parameters * value_bytes,
            gemm_bytes_per_token=_activation_bytes(architecture, tensor_parallel),
            head_flops_per_request=2 * head_parameters,
            head_weight_bytes=head_parameters * value_bytes,
            flops_per_pair=4 * architecture.head_dim * heads * layers,
            prefill_bytes_per_token=query_bytes + kv_bytes,
            kv_bytes=kv_bytes,
            # A ring all-reduce sends 2 (p - 1) / p of its data over each link.
            link_bytes_per_token=reduced_bytes * (2 * (tensor_parallel - 1) / tensor_parallel),
        )


class Bottleneck(enum.StrEnum):
    """What an operator, or a whole batch, waits for."""

    COMPUTE = "compute"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Of one kind of operator in all layers, on one of the devices that share the model: OOCO's Table 3, and how long
    each resource takes for it."""

    flops: float
    memory_bytes: float  # of inputs, outputs and weights
    compute_ms: float
    memory_ms: float

    @property
    def latency_ms(self) -> float:
        """Eq. 1."""
        return max(self.compute_ms, self.memory_ms)

    @property
    def bottleneck(self) -> Bottleneck:
        """Both resources at once count as computing: from here on more work takes longer."""
        return Bottleneck.COMPUTE if self.compute_ms >= self.memory_ms else Bottleneck.MEMORY


@dataclass(frozen=True, slots=True)
class BatchWork:
    """Of one step. An operator that the batch does not have is all 0."""

    gemm: OperatorWork  # of the layers
    output_projection: OperatorWork
    prefill_attention: OperatorWork
    decode_attention: OperatorWork
    link_ms: float  # all-reduces
    overhead_ms: float  # of the step

    def operators(self) -> Iterator[OperatorWork]:
        yield from (self.gemm, self.output_projection, self.prefill_attention, self.decode_attention)

    @property
    def flops(self) -> float:
        return sum(operator.flops for operator in self.operators())

    @property
    def memory_bytes(self) -> float:
        return sum(operator.memory_bytes for operator in self.operators())

    @property
    def latency_ms(self) -> float:
        """One operator after another."""
        return sum(operator.latency_ms for operator in self.operators()) + self.link_ms + self.overhead_ms

    @property
    def compute_bound_ms(self) -> float:
        """How long operators that are bound by computing run."""
        return self._bound_ms(Bottleneck.COMPUTE)

    @property
    def memory_bound_ms(self) -> float:
        """How long operators that are bound by memory run."""
        return self._bound_ms(Bottleneck.MEMORY)

    @property
    def bottleneck(self) -> Bottleneck:
        """By which most of the time is bound. An operator waits for one resource, whatever the other has to do in it
        meanwhile, and operators do not overlap: so times are summed, not FLOPs and bytes."""
        is_compute = self.compute_bound_ms >= self.memory_bound_ms
        return Bottleneck.COMPUTE if is_compute else Bottleneck.MEMORY

    def _bound_ms(self, by: Bottleneck) -> float:
        return sum(operator.latency_ms for operator in self.operators() if operator.bottleneck is by)


def kv_heads_per_device(architecture: Architecture, tensor_parallel: int) -> int:
    """KV heads that each device holds; they are repeated where there are more devices than KV heads. Raises
    ValueError."""
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


def _activation_bytes(architecture: Architecture, tensor_parallel: int) -> float:
    """Inputs and outputs of a layer's GEMMs for one token, on one device, over all layers."""
    hidden, inner = architecture.hidden_size, architecture.intermediate_size / tensor_parallel
    kv_heads = kv_heads_per_device(architecture, tensor_parallel)
    queries = architecture.head_dim * architecture.num_heads / tensor_parallel
    qkv = hidden + queries + 2 * architecture.head_dim * kv_heads
    output = queries + hidden
    mlp = hidden + (architecture.num_mlp_matrices - 1) * inner + inner + hidden
    return architecture.num_layers * (qkv + output + mlp) * architecture.bytes_per_value
