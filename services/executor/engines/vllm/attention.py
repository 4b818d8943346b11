"""Our paged attention in the place of vLLM's: its KV blocks are filled from the left or from the right, as each request
does, so that two requests may share a block (``kernels``, docs/kv.md).

vLLM asks a backend for the layout of the KV cache, what attention needs to know of a step (the builder, once a step),
and attention itself (once a layer). A request's direction comes with it; the builder finds it in the model runner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
from vllm.v1.attention.selector import _cached_get_attn_backend
from vllm.v1.kv_cache_interface import KVCacheLayout

from kernels.kv_write import write_kv
from kernels.paged_attention import paged_attention
from services.executor.engines.vllm.attention_step import DirectedStep, DirectedStepBuilder, as_blocks

DIRECTED_WORKER = "services.executor.engines.vllm.directed_worker.DirectedWorker"  # a worker_extension_cls
PLAIN_KV_DTYPES = ("auto", "float16", "bfloat16", "float32")


class DirectedBackend(AttentionBackend):
    """What vLLM's selector asks for. A KV cache tensor is [num_blocks, num_kv_heads, block_size, k_dim + v_dim] to
    vLLM; in memory block_size comes before num_kv_heads, which is the layout of our kernels."""

    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(PLAIN_KV_DTYPES)

    @staticmethod
    def get_name() -> str:
        name: str = backend_member().name
        return name

    @staticmethod
    def get_impl_cls() -> type[DirectedAttention]:
        return DirectedAttention

    @staticmethod
    def get_builder_cls() -> type[DirectedStepBuilder]:
        return DirectedStepBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBNHC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


class DirectedAttention(AttentionImpl[DirectedStep]):
    """Attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **others: Any,
    ) -> None:
        """Raises NotImplementedError for a kind of attention that our kernels do not compute."""
        wanted = {
            "ALiBi": alibi_slopes is not None,
            "a soft cap of logits": bool(logits_soft_cap),
            f"{attn_type} attention": attn_type != AttentionType.DECODER,
            f"a KV cache of {kv_cache_dtype}": kv_cache_dtype not in PLAIN_KV_DTYPES,
            **{name: value is not None for name, value in others.items()},
        }
        missing = [name for name, is_wanted in wanted.items() if is_wanted]
        if missing:
            raise NotImplementedError(
                f"Slackwater's attention has no {', '.join(missing)}: leave vllm_attention at vllm"
            )
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads or num_heads
        self.scale = scale
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: DirectedStep | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``query`` [num_rows, num_heads, k_dim], ``key`` and ``value`` likewise; ``output`` [num_rows, num_heads,
        v_dim] is written for the step's tokens, which may be fewer. Without a step, vLLM only measures."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("Slackwater's attention does not quantize its output")
        if attn_metadata is None:
            return output
        metadata, blocks = attn_metadata.metadata, as_blocks(kv_cache)
        num_tokens = len(metadata.slot_mapping)
        if self.kv_sharing_target_layer_name is None:
            write_kv(key[:num_tokens], value[:num_tokens], blocks, metadata.slot_mapping)
        rows, buffer = query[:num_tokens], attn_metadata.buffer
        output[:num_tokens] = paged_attention(rows, blocks, metadata, self.scale, buffer, self.sliding_window)
        return output


def backend_member() -> AttentionBackendEnum:
    """The name under which vLLM takes a backend that is not its own. On a CPU it takes none but its own name."""
    return AttentionBackendEnum.CPU_ATTN if current_platform.is_cpu() else AttentionBackendEnum.CUSTOM


def register_directed() -> None:
    """Models that this process makes from here on have our attention. vLLM keeps what it has chosen once."""
    register_backend(backend_member(), f"{DirectedBackend.__module__}.{DirectedBackend.__qualname__}")
    _cached_get_attn_backend.cache_clear()


@contextmanager
def directed_attention() -> Iterator[None]:
    """``register_directed`` for models that are made within it; those of workers in other processes know by
    ``DIRECTED_WORKER``."""
    register_directed()
    try:
        yield
    finally:
        backend_member().clear_override()
        _cached_get_attn_backend.cache_clear()
