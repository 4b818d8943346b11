"""Steps of an engine: prompts that no two requests share, on blocks that are scattered over the pool."""

import random
from collections.abc import Callable, Iterator

from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine, Sequence, StepBatch

GREEDY = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
VOCABULARY = 40_000  # no model's is smaller


def prompt_of(num_tokens: int, number: int = 0) -> list[int]:
    return [(number * 7919 + place * 31) % VOCABULARY for place in range(num_tokens)]


def block_tables(num_blocks: int, num_requests: int) -> list[list[int]]:
    """The whole pool in equal parts."""
    scattered = random.Random(0).sample(range(num_blocks), num_blocks)
    size = num_blocks // num_requests
    return [scattered[number * size : (number + 1) * size] for number in range(num_requests)]


def decode_step(
    tables: list[list[int]],
    context: int,
    token_ids: list[int] | None = None,
    fills_right: Callable[[int], bool] = lambda number: False,
    sampling: Callable[[int], SamplingParams] = lambda number: GREEDY,
) -> StepBatch:
    """A token of each request behind ``context`` others. ``token_ids``: that were sampled before."""
    tokens = token_ids or [number * 7919 % VOCABULARY for number in range(len(tables))]
    sequences = [
        Sequence(f"r{number}", [token], context, table, sampling(number), True, fills_right(number))
        for number, (token, table) in enumerate(zip(tokens, tables, strict=True))
    ]
    return StepBatch(context, sequences)


def prefill_step(
    prompt: list[int], table: list[int], start: int = 0, end: int | None = None, number: int = 0, right: bool = False
) -> StepBatch:
    """The prompt from ``start`` to ``end``, and the token behind it where that is all. ``right``: where it fills its
    blocks from."""
    part = prompt[start:end]
    is_last = start + len(part) == len(prompt)
    return StepBatch(start, [Sequence(f"r{number}", part, start, table, GREEDY, is_last, right)])


def decodes(
    engine: Engine,
    tables: list[list[int]],
    context: int,
    fills_right: Callable[[int], bool] = lambda number: False,
    sampling: Callable[[int], SamplingParams] = lambda number: GREEDY,
) -> Iterator[None]:
    """Steps of one token each behind ``context`` tokens; the prompts are run before the first."""
    sampled: dict[str, int] = {}
    for number, table in enumerate(tables):
        step = prefill_step(prompt_of(context, number), table, number=number, right=fills_right(number))
        sampled |= engine.execute(step).sampled
    while True:
        yield
        covering = [table[: context // engine.spec.block_size + 1] for table in tables]
        tokens = [sampled[f"r{number}"] for number in range(len(tables))]
        sampled = engine.execute(decode_step(covering, context, tokens, fills_right, sampling)).sampled
        context += 1
