"""Paged attention behind transformers' AttentionInterface.

Through the forward's keyword arguments ours receives an ``AttentionStep``: one that pages the KV, or, once at load, one
that finds the layers' KV shapes. No mask function is registered under our name, so transformers builds no mask.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from kernels.cpu.attention import GatherBuffer
from kernels.kv_write import write_kv
from kernels.paged_attention import AttentionMetadata, paged_attention
from shared.errors import EngineError

ATTENTION_NAME = "slackwater_paged"
HARMLESS_OPTIONS = {
    *("dropout", "is_causal", "sliding_window", "position_ids", "use_cache", "cache_position"),
    "output_router_logits",  # what a model of experts is to give back, handed down to all of its layers
}


Layer = Hashable
"""Whatever stands for an attention layer in the model's forward pass."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What an attention layer keeps of a token, and how it attends."""

    num_kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    window: int | None


AttentionStep = Callable[[Layer, Tensor, Tensor, Tensor, float, int | None], Tensor]
"""What serves the attention of one forward pass: of a layer, its query [num_tokens, num_heads, k_dim], key and value
[num_tokens, num_kv_heads, dim], scale and window; gives [num_tokens, num_heads, v_dim]."""


class ShapeProbe:
    """Attends without a cache and notes each layer's shape, in the order of the layers."""

    def __init__(self, num_sequences: int = 1) -> None:
        """``num_sequences``: of the pass, all of one length."""
        self.shapes: dict[Layer, LayerShape] = {}
        self._num_sequences = num_sequences

    def __call__(
        self, layer: Layer, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor:
        if layer in self.shapes:
            raise EngineError(f"{type(layer).__name__} attends more than once, with KV of each")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2], scale, window)
        group_size = query.shape[1] // key.shape[1]
        apart = (heads.view(self._num_sequences, -1, *heads.shape[1:]) for heads in (query, key, value))
        rows, keys, values = (heads.transpose(1, 2) for heads in apart)
        keys, values = keys.repeat_interleave(group_size, dim=1), values.repeat_interleave(group_size, dim=1)
        attended = F.scaled_dot_product_attention(rows, keys, values, is_causal=True, scale=scale)
        return attended.transpose(1, 2).flatten(0, 1)


def paged_step(
    kv_caches: Mapping[Layer, Tensor], metadata: AttentionMetadata, buffer: GatherBuffer, check: Callable[[], None]
) -> AttentionStep:
    """Over the paged KV of every layer: ``kv_caches``, each [num_blocks, block_size, num_kv_heads, k_dim + v_dim].
    ``check`` is called in each layer, and may end the pass by what it raises."""

    def attend(layer: Layer, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        check()
        kv_cache = kv_caches[layer]
        write_kv(key, value, kv_cache, metadata.slot_mapping, metadata.is_paged)
        return paged_attention(query, kv_cache, metadata, scale, buffer, window)

    return attend


def _attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    paged: AttentionStep | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature, of one row. Raises EngineError for what our kernels do not compute."""
    if paged is None:
        raise EngineError(f"{type(module).__name__} does not hand keyword arguments to its attention")
    unknown = [name for name, option in options.items() if option is not None and name not in HARMLESS_OPTIONS]
    if unknown or attention_mask is not None:
        raise EngineError(f"{type(module).__name__} wants what paged attention lacks: {', '.join(unknown) or 'mask'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows, keys, values = (heads[0].transpose(0, 1) for heads in (query, key, value))
    return paged(module, rows, keys, values, scale, options.get("sliding_window")).unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _attention_forward)
