"""What our attention needs to know of one of vLLM's steps, from its model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder

from kernels.cpu import row_attention
from kernels.cpu.attention import GatherBuffer
from kernels.paged_attention import AttentionMetadata
from kernels.slots import StepLayout
from services.executor.engines.vllm.runner_mirror import FILLS_RIGHT_KEY, FIRST_BLOCK


@dataclass(frozen=True, slots=True)
class DirectedStep:
    """One step, for every layer."""

    metadata: AttentionMetadata
    buffer: GatherBuffer


class DirectedStepBuilder(AttentionMetadataBuilder[DirectedStep]):
    """Reads the step from the model runner's arrays on the host: nothing waits for the device."""

    reorder_batch_threshold = 1  # decodes lead, and are grouped

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._buffer = GatherBuffer()
        self._runner: Any = None
        self._kv_cache = torch.empty(0)

    def bind(self, runner: Any) -> None:
        """``runner``: vLLM's model runner, once its KV caches are there."""
        self._runner = runner
        self._kv_cache = _kv_caches(runner, self.layer_names)[0]
        if self._kv_cache.device.type == "cpu":
            head_size = self._kv_cache.shape[3] // 2
            row_attention.prepare(self._kv_cache.dtype, head_size, head_size)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> DirectedStep:
        """Raises RuntimeError before ``bind``: no step has run by then."""
        if self._runner is None:
            raise RuntimeError("a step before the attention backend knows its model runner")
        common, batch = common_attn_metadata, self._runner.input_batch
        block_size = self._kv_cache.shape[1]
        starts = common.query_start_loc_cpu.numpy().astype(np.int64)
        num_new = np.diff(starts)
        seq_lens = common.seq_lens_cpu_upper_bound.numpy().astype(np.int64)  # exact without speculative decoding
        counts = -(-seq_lens // block_size)
        rows = batch.block_table[0].get_numpy_array()[: len(counts), : counts.max()]
        all_blocks = rows[np.arange(rows.shape[1]) < counts[:, None]].astype(np.int64)
        requests = [self._runner.requests[request_id] for request_id in batch.req_ids[: len(counts)]]
        directions = np.array([request.sampling_params.extra_args[FILLS_RIGHT_KEY] for request in requests])
        layout = StepLayout.of_arrays(num_new, seq_lens - num_new, all_blocks, directions, block_size)
        return DirectedStep(AttentionMetadata.of(layout, self._kv_cache), self._buffer)


def bind_attention(worker: Any) -> None:
    """Called in each of vLLM's workers by ``collective_rpc``, before its first step."""
    for group in _groups(worker):
        for builder in group.metadata_builders:
            builder.bind(worker.model_runner)


def directed_kv_caches(worker: Any) -> list[torch.Tensor]:
    """Of one of vLLM's workers, in its process: the KV cache of each layer that has one, without vLLM's null block:
    [num_blocks, block_size, num_kv_heads, k_dim + v_dim]."""
    kv_caches: dict[int, torch.Tensor] = {}
    for group in _groups(worker):
        for kv_cache in _kv_caches(worker.model_runner, group.layer_names):
            kv_caches.setdefault(kv_cache.data_ptr(), kv_cache[FIRST_BLOCK:])  # layers may share one
    return list(kv_caches.values())


def as_blocks(kv_cache: torch.Tensor) -> torch.Tensor:
    """As our kernels have it: [num_blocks, block_size, num_kv_heads, k_dim + v_dim], contiguous."""
    return kv_cache.transpose(1, 2)


def _kv_caches(runner: Any, layer_names: list[str]) -> list[torch.Tensor]:
    layers = runner.compilation_config.static_forward_context
    return [as_blocks(layers[name].kv_cache) for name in layer_names]


def _groups(worker: Any) -> list[Any]:
    """Of layers with the same attention."""
    return [group for groups in worker.model_runner.attn_groups for group in groups]
