"""Steps that make Triton compile every kernel before the first request: later, each would cost a step seconds."""

import itertools
from collections.abc import Iterator

from shared.protocol.executors import EngineSpec
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch

LONG_CONTEXT = 2048  # enough that one sequence alone is split over the SMs of any GPU
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def warm_up_batches(spec: EngineSpec, mixed: bool = False) -> Iterator[StepBatch]:
    """Decodes and chunks, over short and long contexts, from both ends; then, where they share a launch (``mixed``),
    each with each. They read what block 0 holds, and write it."""
    longest = min(LONG_CONTEXT, spec.max_model_len, spec.block_size * spec.num_blocks)
    lengths = list(dict.fromkeys((min(8, longest), longest)))
    parts = [[(num_new, length)] for num_new, length in itertools.product((1, 2), lengths)]
    if mixed:
        parts += [[(1, decode), (2, chunk)] for decode, chunk in itertools.product(lengths, lengths)]
    for step, (fills_right, part) in enumerate(itertools.product((False, True), parts)):
        yield StepBatch(step, [_sequence(spec, number, *each, fills_right) for number, each in enumerate(part)])


def _sequence(spec: EngineSpec, number: int, num_new: int, length: int, fills_right: bool) -> Sequence:
    tokens, table = [0] * min(num_new, length), [0] * -(-length // spec.block_size)
    return Sequence(f"warm-up-{number}", tokens, length - len(tokens), table, GREEDY, True, fills_right)
