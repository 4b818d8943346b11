"""Steps with chunks as CUDA graphs, in pieces: what lies between the attention of one layer and that of the next is
recorded for some numbers of tokens. Attention itself, which is cut differently in each step, is launched between the
pieces, over the step's own sequences (as vLLM's piecewise graphs are).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from kernels.cpu.attention import GatherBuffer
from kernels.gpu.batch import StaticInputs
from kernels.kv_write import write_kv
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.slots import Ints, StepLayout
from services.executor.engines.torch.attention import AttentionStep, Layer
from services.executor.engines.torch.graphs import SharedLogits, sizes_up_to, warm_up

SMALL_SIZES = (16, 32, 64)
SIZE_STEP = 128  # as tiles of products are

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, AttentionStep], torch.Tensor]
"""From input ids and position ids [num_tokens] and numbers of rows [num_rows] to logits [num_rows, vocab_size]."""

Cut = Callable[[int], None]
"""Called where the attention of the layer of this number belongs."""

Run = Callable[[Cut], torch.Tensor]
Recorder = Callable[[Run], Run]
"""From a forward pass over static inputs to what does the same again, over what the inputs hold then."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """Where a layer's attention finds its query [max_tokens, num_heads, k_dim], and leaves [max_tokens, num_heads,
    v_dim]."""

    kv_cache: torch.Tensor
    scale: float
    window: int | None
    query: torch.Tensor
    attended: torch.Tensor


class PiecewiseGraphs:
    """Forward passes of steps of any kind, each recorded for a number of tokens over the same static inputs."""

    def __init__(
        self,
        forward: Forward,
        kv_caches: Mapping[Layer, torch.Tensor],
        max_tokens: int,
        max_rows: int,
        record: Recorder,
    ) -> None:
        """Record all sizes, the largest first, so that the others find memory in its pool. KV is neither read nor
        written. ``max_rows``: logits that a step may ask for. Raises RuntimeError where the model's forward cannot be
        recorded."""
        self._forward = forward
        self._kv_caches = kv_caches
        self._max_tokens, self._max_rows = max_tokens, max_rows
        device = next(iter(kv_caches.values())).device
        self._inputs = StaticInputs(_padding(max_tokens, max_rows), device)
        self._input_ids, self._positions, self._slots, self._rows = self._inputs.tensors
        self._buffer = GatherBuffer()
        self._logits = SharedLogits(min(max_tokens, max_rows))
        self._layers: list[_Layer] = []
        self._shared: dict[tuple[int, ...], torch.Tensor] = {}  # queries and results, of one layer after the other
        self._replays: dict[int, Run] = {}
        for size in reversed(token_sizes(max_tokens)):
            self._replays[size] = record(partial(self._run, size))
        self.sizes = sorted(self._replays)  # recorded numbers of tokens

    def logits(
        self,
        metadata: AttentionMetadata,
        layout: StepLayout,
        input_ids: Ints,
        rows: Ints,
        check: Callable[[], None],
    ) -> torch.Tensor | None:
        """[num_rows, vocab_size], valid until the next call; None of a step that no recorded size holds. ``rows``: the
        numbers of tokens; ``check`` is called in each layer, and may end the pass by what it raises."""
        count = len(input_ids)
        if count > self._max_tokens or len(rows) > self._max_rows:
            return None
        size = next(size for size in self.sizes if size >= count)
        self._inputs.load((input_ids, layout.positions, layout.slot_mapping, rows))

        def attend(number: int) -> None:
            check()
            layer = self._layers[number]
            query, out = layer.query[:count], layer.attended[:count]
            paged_attention(query, layer.kv_cache, metadata, layer.scale, self._buffer, layer.window, out)

        return self._replays[size](attend)[: len(rows)]

    def _run(self, size: int, cut: Cut) -> torch.Tensor:
        numbers, rows = itertools.count(), self._rows[: min(size, self._max_rows)]

        def step(
            layer: Layer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
        ) -> torch.Tensor:
            number, kv_cache = next(numbers), self._kv_caches[layer]
            write_kv(key, value, kv_cache, self._slots[:size], paged=True)
            if number == len(self._layers):
                shape = query.shape[1:]
                static = self._static(0, query, *shape), self._static(1, query, shape[0], value.shape[2])
                self._layers.append(_Layer(kv_cache, scale, window, *static))
            static_query, attended = self._layers[number].query, self._layers[number].attended
            static_query[:size].copy_(query)
            cut(number)
            return attended[:size]

        return self._logits.hold(self._forward(self._input_ids[:size], self._positions[:size], rows, step))

    def _static(self, use: int, like: torch.Tensor, num_heads: int, dim: int) -> torch.Tensor:
        key = (use, num_heads, dim)
        if key not in self._shared:
            self._shared[key] = like.new_zeros(self._max_tokens, num_heads, dim)
        return self._shared[key]


def _padding(max_tokens: int, max_rows: int) -> list[Ints]:
    """Input ids, positions, slots, rows: what is no token's is written nowhere."""
    zeros = np.zeros(max_tokens, np.int64)
    return [zeros, zeros, np.full(max_tokens, -1, np.int64), np.zeros(max_rows, np.int64)]


def cuda_piece_recorder(device: torch.device) -> Recorder:
    """As ``services.executor.engines.torch.graphs.cuda_recorder``, a graph for each piece."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()

    def record(run: Run) -> Run:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        graphs: list[torch.cuda.CUDAGraph] = []

        def begin() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool, capture_error_mode="thread_local")

        def cut(number: int) -> None:
            graphs[-1].capture_end()
            begin()

        with torch.cuda.stream(stream):
            warm_up(lambda: run(lambda number: None))
            torch.cuda.synchronize(device)
            begin()
            try:
                out = run(cut)
            finally:
                graphs[-1].capture_end()
        current.wait_stream(stream)

        def replay(attend: Cut) -> torch.Tensor:
            for number, graph in enumerate(graphs[:-1]):
                graph.replay()
                attend(number)
            graphs[-1].replay()
            return out

        return replay

    return record


def token_sizes(max_tokens: int) -> list[int]:
    """16, 32, 64, then multiples of 128, the last cut to ``max_tokens``."""
    return sizes_up_to(max_tokens, SMALL_SIZES, SIZE_STEP)
