"""The mirror's count of blocks against a pool, where requests begin with what the prefix cache has."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.limits import Limits
from shared.scheduling.planning.mirror import ExecutorMirror
from shared.scheduling.request import Kind, Request
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.shared.scheduling.factories import make_request
from tests.shared.scheduling.kv.cache_listeners import commit, start

BLOCK, NUM_BLOCKS = 4, 60
# No prompt ends with a block: its last token is computed in a block of its own, beside one that may be cached.
lengths = st.integers(1, 30).filter(lambda length: length % BLOCK)
prompts = st.lists(st.tuples(st.integers(0, 2), lengths), min_size=1, max_size=6)  # beginning and length


@given(
    prompts=prompts,
    before=prompts,
    keeps=st.lists(st.booleans(), min_size=6, max_size=6),
    kinds=st.lists(st.sampled_from(Kind), min_size=6, max_size=6),
    chunk=st.integers(1, 30),
    per_step=st.integers(1, 6),
    sharing=st.sampled_from(["recompute", "bidirectional"]),
)
def test_who_enters_takes_the_blocks_that_the_pool_gives_it(
    prompts: list[tuple[int, int]],
    before: list[tuple[int, int]],
    keeps: list[bool],
    kinds: list[Kind],
    chunk: int,
    per_step: int,
    sharing: str,
) -> None:
    """One step after another, in which so many begin, who find what those before them compute; what was there before is
    held or only cached."""
    strategy, limits = Strategy(kv_sharing=sharing), Limits(BLOCK, NUM_BLOCKS, 512, 8)
    pool = strategy.make_pool(limits, 0)
    tokens = {f"r{n}": [first] * length for n, (first, length) in enumerate(prompts)}
    for number, ((first, length), is_kept) in enumerate(zip(before, keeps, strict=False)):
        start(pool, f"before-{number}", Kind.OFFLINE, [first] * length)
        assert pool.grow(f"before-{number}", length)
        commit(pool, f"before-{number}", [first] * length, length)
        if not is_kept:
            pool.free(f"before-{number}")
    mirror = ExecutorMirror(limits, strategy, lambda key: hash_chain(tokens[key], BLOCK))
    states: list[Request] = [
        make_request(key, kind, prompt=len(each), max_tokens=9)
        for (key, each), kind in zip(tokens.items(), kinds, strict=False)
    ]
    mirror.observe(states, [], pool.num_free, cache=pool.take_cache_changes())
    for first in range(0, len(states), per_step):
        entries, found = list[ScheduledRequest](), dict[str, tuple[int, int]]()
        for state in states[first : first + per_step]:
            key, kind = state.request_id, state.kind
            num_cached = start(pool, key, kind, tokens[key])
            num_tokens = min(chunk, len(tokens[key]) - num_cached)
            assert pool.grow(key, num_cached + num_tokens)
            commit(pool, key, tokens[key], num_cached + num_tokens)
            entries.append(ScheduledRequest(key, kind, num_tokens))
            found[key] = num_cached, len(pool.table(key))
        mirror.start(entries)
        held = [mirror.table.get(key) for key in found]
        assert [(each.num_computed_tokens, each.num_blocks) for each in held if each] == list(found.values())
        assert mirror.num_free_blocks == pool.num_free
        mirror.finish(entries)
        mirror.table.check_integrity()
