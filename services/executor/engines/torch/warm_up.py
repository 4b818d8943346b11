"""Steps that make Triton compile every kernel before the first request: later, each would cost a step seconds."""

import itertools
from collections.abc import Iterator

from shared.protocol.executors import EngineSpec
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Sequence, StepBatch

LONG_CONTEXT = 2048  # enough that one sequence alone is split over the SMs of any GPU
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def warm_up_batches(spec: EngineSpec) -> Iterator[StepBatch]:
    """Decodes and chunks, over short and long contexts, from both ends. They read what block 0 holds, and write it."""
    longest = min(LONG_CONTEXT, spec.max_model_len, spec.block_size * spec.num_blocks)
    cases = itertools.product((False, True), (1, 2), dict.fromkeys((min(8, longest), longest)))
    for step, (fills_right, num_new, length) in enumerate(cases):
        tokens, table = [0] * min(num_new, length), [0] * -(-length // spec.block_size)
        yield StepBatch(step, [Sequence("warm-up", tokens, length - len(tokens), table, GREEDY, True, fills_right)])
