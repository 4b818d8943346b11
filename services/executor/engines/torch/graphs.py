"""Decode steps as CUDA graphs: recorded once for some batch sizes, then replayed by one launch.

A decode step is hundreds of short kernels, each of which costs the host a launch. What a graph reads must lie where it
lay when it was recorded, so a step is copied into static inputs, padded to the next recorded size.
"""

import warnings
from collections.abc import Callable
from functools import partial

import torch

from kernels.padded_decodes import PaddedDecodes
from kernels.paged_attention import AttentionMetadata
from kernels.slots import Ints, StepLayout

SMALL_SIZES = (1, 2, 4)
SIZE_STEP = 8

Forward = Callable[[torch.Tensor, AttentionMetadata], torch.Tensor]
"""From input ids [num_decodes] to logits [num_decodes, vocab_size]."""

Run = Callable[[], torch.Tensor]
Recorder = Callable[[Run], Run]
"""From a forward pass over static inputs to what does the same again, over what the inputs hold then."""


class DecodeGraphs:
    """Forward passes of decode batches, each recorded for one size over the same static inputs."""

    def __init__(self, forward: Forward, inputs: PaddedDecodes, max_decodes: int, record: Recorder) -> None:
        """Record all sizes, the largest first, so that the others find memory in its pool. KV is neither read nor
        written. Raises RuntimeError where the model's forward cannot be recorded."""
        self._forward = forward
        self._inputs = inputs
        self._logits = SharedLogits(max_decodes)
        self._replays: dict[int, Run] = {}
        for size in reversed(graph_sizes(max_decodes)):
            self._replays[size] = record(partial(self._run, size))
        self.sizes = sorted(self._replays)  # recorded batch sizes

    def logits(self, layout: StepLayout, input_ids: Ints) -> torch.Tensor | None:
        """[num_decodes, vocab_size], valid until the next call; None of a step that no recorded size holds."""
        if not self._inputs.holds(layout):
            return None
        count = len(layout.num_new)
        size = next(size for size in self.sizes if size >= count)
        self._inputs.load(layout, input_ids)
        return self._replays[size]()[:count]

    def _run(self, size: int) -> torch.Tensor:
        return self._logits.hold(self._forward(*self._inputs.rows(size)))


class SharedLogits:
    """Of passes of all sizes, no two of which run at a time. Logits that each left where it computed them would be
    taken out of the pool for good, which is a gigabyte for 128,000 tokens and sizes up to 256."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._memory: torch.Tensor | None = None  # [max_rows, vocab_size], from the first on

    def hold(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [num_rows, vocab_size], in the memory of all."""
        if self._memory is None:
            self._memory = logits.new_empty(self._max_rows, logits.shape[1])
        return self._memory[: len(logits)].copy_(logits)


def cuda_recorder(device: torch.device) -> Recorder:
    """Records CUDA graphs that share one memory pool: no two of them run at a time. Raises RuntimeError where torch has
    no CUDA, and when it records, if the forward pass waits for the device or does what cannot be recorded."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    pool = torch.cuda.graph_pool_handle()

    def record(run: Run) -> Run:
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # put back here where a failed recording leaves it
            warm_up(run)
            with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
                out = run()
        current.wait_stream(stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    return record


def warm_up(run: Callable[[], object]) -> None:
    """Before it is recorded: kernels are compiled, and libraries take their workspace. Raises RuntimeError where it
    waits for the device. To find that in a recording is too late: before torch 2.13 its allocator goes on as if it were
    being made, and keeps what several streams have used, as slots on their way to the host are."""
    run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def graph_sizes(max_decodes: int) -> list[int]:
    """1, 2, 4, then multiples of 8, the last cut to ``max_decodes``."""
    return sizes_up_to(max_decodes, SMALL_SIZES, SIZE_STEP)


def sizes_up_to(largest: int, small: tuple[int, ...], step: int) -> list[int]:
    """``small``, then multiples of ``step``, the last cut to ``largest``."""
    sizes = [*small, *range(step, largest + step, step)]
    return [size for size in sizes if size < largest] + [largest]
