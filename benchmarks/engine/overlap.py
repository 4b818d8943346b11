"""What a step gains on a CPU when its chunk's products and its decodes' reads run at once: ``python -m
benchmarks.engine.overlap``.

A step of a prefill chunk and decodes over long contexts, in several ways: all of it on all threads, one operation
after the other, as the torch engine runs it; and chunk and decodes in two threads beside each other. The ways run in
turns, the first of them twice, so that how far it differs from itself shows what a difference is worth. Ratios are of
two steps of one turn.
"""

from services.executor.engines.torch.threads import cpu_count

# isort: split
import statistics
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.engine.batches import GREEDY, block_tables, prompt_of
from benchmarks.harness.command import DEFAULT_MODEL, ModelOption, Results, Row, benchmark, model_folder
from benchmarks.harness.turns import Times, in_turns
from kernels.cpu.attention import GatherBuffer
from kernels.kv_write import write_kv
from kernels.paged_attention import AttentionMetadata, paged_attention
from kernels.slots import StepLayout
from services.executor.engines.torch.attention import Layer, paged_step
from services.executor.engines.torch.device import keep_freed_memory, zeros
from services.executor.engines.torch.model import LoadedModel
from shared.replica.engine import Sequence

BLOCK_SIZE = 16
THREADS = 2  # one for each kind of work
LOGITS_ATOL = 1e-2

Forward = Callable[[], Tensor]
"""Gives the logits of a step, [num_sequences, vocab_size], decodes first."""


@dataclass(slots=True)
class Part:
    """Sequences that a forward pass takes, over the KV of each layer."""

    model: LoadedModel
    kv_caches: Mapping[Layer, Tensor]
    sequences: list[Sequence]
    buffer: GatherBuffer = field(default_factory=GatherBuffer)

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    def layout(self) -> StepLayout:
        return StepLayout.of(self.sequences, *self.kv_cache.shape[:2])

    @property
    def kv_cache(self) -> Tensor:
        """Of the first layer."""
        return next(iter(self.kv_caches.values()))

    def forward(self, check: Callable[[], None] = lambda: None) -> Tensor:
        """Logits of each sequence's last token; ``check`` is called in each layer."""
        metadata = AttentionMetadata.of(self.layout(), self.kv_cache)
        return self.forward_with(metadata, paged_step(self.kv_caches, metadata, self.buffer, check))

    def forward_with(self, metadata: AttentionMetadata, step: Callable[..., Tensor]) -> Tensor:
        tokens = torch.tensor([token for sequence in self.sequences for token in sequence.token_ids])
        rows = torch.from_numpy(self.layout().row_ends - 1)
        return self.model.forward(tokens, metadata.position_ids, rows, step)


@dataclass(frozen=True, slots=True)
class MixedStep:
    """Its decodes, its chunk, and both in one pass; ``helper`` runs what is beside the calling thread."""

    decodes: Part
    chunk: Part
    whole: Part
    helper: ThreadPoolExecutor

    def together(self) -> Tensor:
        torch.set_num_threads(THREADS)
        return self.whole.forward()

    def one_after_the_other(self) -> Tensor:
        """Two passes: the weights are read twice."""
        torch.set_num_threads(THREADS)
        return torch.cat((self.decodes.forward(), self.chunk.forward()))

    def passes_at_once(self) -> Tensor:
        """A thread each, to the end."""
        decodes = self.helper.submit(_alone, self.decodes.forward)
        chunk = _alone(self.chunk.forward)
        return torch.cat((decodes.result(), chunk))

    def passes_at_once_then_all(self) -> Tensor:
        """A thread each; from the first layer on that begins when the other has ended, all threads."""
        chunk: Future[Tensor] = Future()
        decodes = self.helper.submit(_alone, lambda: self.decodes.forward(lambda: _take_all(chunk)))
        chunk.set_result(_alone(lambda: self.chunk.forward(lambda: _take_all(decodes))))
        return torch.cat((decodes.result(), chunk.result()))

    def attention_at_once(self) -> Tensor:
        """One pass on all threads, in which each layer's attention is a thread for decodes and one for the chunk."""
        first = self.decodes.num_tokens
        whole, decodes, chunk = (
            AttentionMetadata.of(part.layout(), part.kv_cache) for part in (self.whole, self.decodes, self.chunk)
        )

        def step(layer: Layer, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
            kv_cache = self.whole.kv_caches[layer]
            write_kv(key, value, kv_cache, whole.slot_mapping, whole.is_paged)
            beside = self.helper.submit(
                _alone, lambda: paged_attention(query[:first], kv_cache, decodes, scale, self.decodes.buffer, window)
            )
            behind = _alone(lambda: paged_attention(query[first:], kv_cache, chunk, scale, self.chunk.buffer, window))
            attended = torch.cat((beside.result(), behind))
            torch.set_num_threads(THREADS)
            return attended

        torch.set_num_threads(THREADS)
        return self.whole.forward_with(whole, step)


def _alone(run: Forward) -> Tensor:
    """On the calling thread, without others of OpenMP."""
    return _on(1, run)


def _on(num_threads: int, run: Forward) -> Tensor:
    torch.set_num_threads(num_threads)
    with torch.inference_mode():
        return run()


def _take_all(other: Future[Tensor]) -> None:
    if other.done():
        torch.set_num_threads(THREADS)


def mixed_step(model: LoadedModel, num_decodes: int, context: int, chunk: int, helper: ThreadPoolExecutor) -> MixedStep:
    """Each decode over ``context`` tokens with its own, the chunk from nothing; blocks scattered over the pool."""
    needed = [-(-context // BLOCK_SIZE)] * num_decodes + [-(-chunk // BLOCK_SIZE)]
    [pool] = block_tables(sum(needed), 1)
    tables = [[pool.pop() for _ in range(count)] for count in needed]
    decodes = [Sequence(f"r{i}", [7 + i], context - 1, tables[i], GREEDY, True) for i in range(num_decodes)]
    prompt = Sequence("chunk", prompt_of(chunk), 0, tables[-1], GREEDY, True)
    kv_caches = {
        layer: zeros((sum(needed), BLOCK_SIZE, shape.num_kv_heads, shape.k_dim + shape.v_dim), model.dtype, CPU)
        for layer, shape in model.shapes.items()
    }
    torch.manual_seed(0)
    for kv_cache in kv_caches.values():
        kv_cache.normal_()
    alone, chunk_alone, whole = (
        Part(model, kv_caches, sequences) for sequences in (decodes, [prompt], [*decodes, prompt])
    )
    return MixedStep(alone, chunk_alone, whole, helper)


CPU = torch.device("cpu")


def compare(ways: Mapping[str, Forward], turns: int) -> Iterator[Row]:
    """The first of ``ways`` is what the others are compared with. Raises AssertionError where logits differ."""
    names, runs = list(ways), list(ways.values())
    expected = runs[0]()
    tokens = {}
    for name, run in ways.items():
        logits = run()
        torch.testing.assert_close(logits, expected, atol=LOGITS_ATOL, rtol=1e-3)
        tokens[name] = int((logits.argmax(-1) == expected.argmax(-1)).sum())
    times = in_turns([*runs, runs[0]], turns)
    for name, each in zip([*names, f"{names[0]}, again"], times, strict=True):
        yield _row(name, each, times[0], tokens.get(name, len(expected)), len(expected))


def scaling(step: MixedStep, turns: int) -> Iterator[Row]:
    """What each pass takes by itself, on one thread and on all."""
    for name, part in (("decodes alone", step.decodes), ("chunk alone", step.chunk)):
        one, every = in_turns([partial(_on, threads, part.forward) for threads in (1, THREADS)], turns)
        ratios = [slow / fast for slow, fast in zip(one.clock_ms, every.clock_ms, strict=True)]
        yield {
            "pass": name,
            "one thread ms": f"{one.median_ms:.0f}",
            "fastest ms": f"{min(one.clock_ms):.0f}",
            "all threads ms": f"{every.median_ms:.0f}",
            "their fastest ms": f"{min(every.clock_ms):.0f}",
            "times as fast": f"{statistics.median(ratios):.2f}",
        }


def _row(name: str, times: Times, base: Times, same: int, num_tokens: int) -> Row:
    ratios = [ours / theirs for ours, theirs in zip(times.clock_ms, base.clock_ms, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "step": name,
        "ms": f"{times.median_ms:.0f}",
        "fastest ms": f"{min(times.clock_ms):.0f}",
        "CPU ms": f"{times.median_cpu_ms:.0f}",
        "time ratio": f"{middle:.3f}",
        "quartiles": f"{low:.3f} to {high:.3f}",
        "same tokens": f"{same} of {num_tokens}",
    }


@benchmark
def main(
    decodes: Annotated[int, typer.Option(help="Of the step.")] = 32,
    context: Annotated[int, typer.Option(help="Tokens of each decode.")] = 2000,
    chunk: Annotated[int, typer.Option(help="Tokens of the prefill chunk.")] = 512,
    turns: Annotated[int, typer.Option(help="Of each way.")] = 31,
    model: ModelOption = DEFAULT_MODEL,
) -> Results:
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    with torch.inference_mode(), ThreadPoolExecutor(1) as helper:
        loaded = LoadedModel.load(model_folder(model), CPU, "float32", max_model_len=context + chunk)
        step = mixed_step(loaded, decodes, context, chunk, helper)
        yield (
            f"torch {torch.__version__}, {cpu_count()} cores, {THREADS} threads, float32: a chunk of {chunk} beside "
            f"{decodes} decodes over {context}, {turns} turns"
        )
        yield from scaling(step, turns)
        yield from compare(
            {
                "as it is": step.together,
                "two passes, one after the other": step.one_after_the_other,
                "two passes at once, a thread each": step.passes_at_once,
                "the same, then all threads for what is left": step.passes_at_once_then_all,
                "one pass, attention of both kinds at once": step.attention_at_once,
            },
            turns,
        )
