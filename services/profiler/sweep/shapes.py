"""Which batches a sweep measures, and in which order."""

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from typing import TypeVar

from msgspec.structs import replace

from shared.protocol.executors import ExecutorInfo
from shared.protocol.profiling.measurements import MeasureShape, PrefillChunk
from shared.scheduling.step_sizes import PROMPT_TOKENS, USUAL, StepSizes

SMALLEST_CHUNK = 16
SMALLEST_CONTEXT = 32
LARGE_CONTEXT = 128  # of so many decodes that more would not fit many KV caches
PIECES = (1, 4)  # requests that one prefill total is split over
REPEATS = 2
MOST = StepSizes(1 << 16, 1 << 13)  # no larger step is measured, whatever an executor's registration says
NUM_CONTINUED = 8
NUM_MIXED = 14

T = TypeVar("T")
Prefills = list[PrefillChunk]
Batch = tuple[Prefills, list[int]]  # the latter: context lengths of its decodes


def warm_up_shape(info: ExecutorInfo) -> MeasureShape:
    """Small, of both kinds where the limits allow; its time is worth nothing."""
    mixed = MeasureShape([PrefillChunk(SMALLEST_CHUNK)], [SMALLEST_CHUNK], repeats=1)
    return mixed if fits(mixed, info) else MeasureShape([PrefillChunk(1)], [], repeats=1)


def sweep_shapes(info: ExecutorInfo) -> list[MeasureShape]:
    """Prefill chunks from nothing and over the KV of earlier chunks, decode batches and mixes, all within the
    executor's limits; the most informative first, so that a sweep that is cut short has seen the corners of what can
    come (HyGen section 4.2: varying the number of requests per phase, lengths and batch sizes). Where the sizes of its
    steps are still to be chosen, larger steps than usual come last: a device on which they pay is quick to get there.
    """
    prefills = list(_prefills(info))
    continued = list(islice(_continued(info), NUM_CONTINUED))
    decodes = list(_decodes(info))
    mixed = islice(_mixed(_in_turn(prefills, continued), decodes, info), NUM_MIXED)
    alone: list[list[Batch]] = [[(p, []) for p in prefills], [([], d) for d in decodes], [(p, []) for p in continued]]
    usual = (MeasureShape(prefills, lens, REPEATS) for prefills, lens in _in_turn(*alone, mixed))
    return [*usual, *_larger(info)]


def fits(shape: MeasureShape, info: ExecutorInfo) -> bool:
    """Whether it is one step that the executor can run with all its KV blocks free."""
    lengths = [chunk.num_tokens + chunk.num_computed_tokens for chunk in shape.prefills]
    lengths += [length + 1 for length in shape.decode_context_lens]
    num_blocks = sum(-(-length // info.spec.block_size) for length in lengths)
    return (
        0 < num_tokens(shape) <= _largest(info).max_num_batched_tokens
        and len(lengths) <= _largest(info).max_num_seqs
        and max(lengths) < info.spec.max_model_len  # a context's last token is sampled, and never computed
        and num_blocks <= info.spec.num_blocks
    )


def num_tokens(shape: MeasureShape) -> int:
    """Tokens that one step computes."""
    return sum(chunk.num_tokens for chunk in shape.prefills) + len(shape.decode_context_lens)


def half_of(shape: MeasureShape) -> MeasureShape | None:
    """Chunks half as long, over as much KV, and half the decodes; None where it has no half."""
    chunks = [PrefillChunk(max(1, each.num_tokens // 2), each.num_computed_tokens) for each in shape.prefills]
    decodes = shape.decode_context_lens[: -(-len(shape.decode_context_lens) // 2)]
    half = replace(shape, prefills=chunks, decode_context_lens=decodes)
    return half if num_tokens(half) < num_tokens(shape) else None


def _largest(info: ExecutorInfo) -> StepSizes:
    return _least(info.largest_sizes, MOST)


def _usual(info: ExecutorInfo) -> StepSizes:
    return _largest(info) if info.largest is None else _least(_largest(info), USUAL)


def _least(one: StepSizes, other: StepSizes) -> StepSizes:
    tokens = min(one.max_num_batched_tokens, other.max_num_batched_tokens)
    return StepSizes(tokens, min(one.max_num_seqs, other.max_num_seqs))


def _larger(info: ExecutorInfo) -> Iterator[MeasureShape]:
    """Each twice as large as the one before: prompts, and decodes, as far as the KV blocks go."""
    usual, largest, block_size = _usual(info), _largest(info), info.spec.block_size
    tokens = _levels(usual.max_num_batched_tokens, largest.max_num_batched_tokens, factor=2)[-2::-1]
    seqs = _levels(usual.max_num_seqs, min(largest.max_num_seqs, largest.max_num_batched_tokens), factor=2)[-2::-1]
    prompt = min(PROMPT_TOKENS, usual.max_num_batched_tokens)
    prompts = [MeasureShape([PrefillChunk(prompt)] * (total // prompt), [], REPEATS) for total in tokens]
    contexts = {size: min(LARGE_CONTEXT, info.spec.num_blocks // size * block_size - 1) for size in seqs}
    decodes = [MeasureShape([], [context] * size, REPEATS) for size, context in contexts.items() if context > 0]
    yield from (shape for shape in _in_turn(prompts, decodes) if fits(shape, info))


def _prefills(info: ExecutorInfo) -> Iterator[Prefills]:
    """The chunks of each batch that begins prompts."""
    totals = _levels(SMALLEST_CHUNK, _usual(info).max_num_batched_tokens, factor=2)
    for total, pieces in _corners_first(totals, list(PIECES)):
        chunks = [PrefillChunk(total // pieces)] * pieces
        if chunks[0].num_tokens > 0 and fits(MeasureShape(chunks, []), info):
            yield chunks


def _continued(info: ExecutorInfo) -> Iterator[Prefills]:
    """One chunk over KV that is there, which tells what its pairs cost apart from what its tokens cost."""
    longest = min(info.spec.max_model_len - 1, info.spec.num_blocks * info.spec.block_size)
    totals = _levels(SMALLEST_CHUNK, _usual(info).max_num_batched_tokens, factor=4)
    contexts = _levels(max(1, longest // 16), longest, factor=4)
    seen = set()
    for total, context in _corners_first(totals, contexts):
        chunk = PrefillChunk(total, min(context, longest - total))
        if total > 1 and chunk.num_computed_tokens > 0 and chunk not in seen and fits(MeasureShape([chunk], []), info):
            seen.add(chunk)
            yield [chunk]


def _decodes(info: ExecutorInfo) -> Iterator[list[int]]:
    """Context lengths of each decode batch; long contexts give way where large batches leave them no blocks."""
    sizes = _levels(1, min(_usual(info).max_num_seqs, _usual(info).max_num_batched_tokens), factor=4)
    contexts = _levels(SMALLEST_CONTEXT, info.spec.max_model_len - 2, factor=4)
    seen = set()
    for size, context in _corners_first(sizes, contexts):
        longest = (info.spec.num_blocks // size) * info.spec.block_size - 1
        lens = [min(context, longest)] * size
        if lens[0] > 0 and (size, lens[0]) not in seen and fits(MeasureShape([], lens), info):
            seen.add((size, lens[0]))
            yield lens


def _mixed(prefills: list[Prefills], decodes: list[list[int]], info: ExecutorInfo) -> Iterator[Batch]:
    """Pairs that fit one step, walking both lists at once so that sizes vary."""
    for offset in range(len(decodes)):
        for index, chunks in enumerate(prefills):
            pair = (chunks, decodes[(index + offset) % len(decodes)])
            if fits(MeasureShape(*pair), info):
                yield pair


def _in_turn(*kinds: Iterable[T]) -> list[T]:
    """One of each kind in turn, as far as they go."""
    return [each for one_round in zip_longest(*kinds) for each in one_round if each is not None]


def _levels(smallest: int, largest: int, factor: int) -> list[int]:
    """Geometric from ``largest`` down, the smallest included: [512, 256, .., 16]."""
    levels = []
    level = largest
    while level > smallest:
        levels.append(level)
        level //= factor
    return [*levels, min(smallest, largest)]


def _corners_first(first: list[int], second: list[int]) -> list[tuple[int, int]]:
    """All pairs, those of the extreme values before those between."""
    rows, columns = enumerate(_outside_in(first)), list(enumerate(_outside_in(second)))
    ranked = [(row + column, row, (a, b)) for row, a in rows for column, b in columns]
    return [pair for _, _, pair in sorted(ranked)]


def _outside_in(values: list[int]) -> list[int]:
    """Last, first, last but one, second, ..."""
    ends = zip(reversed(values), values, strict=True)
    return list(dict.fromkeys(value for pair in ends for value in pair))
