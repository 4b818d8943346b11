"""The mirror's count of blocks against a pool, where requests begin with what the prefix cache has."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
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


@given(prompts=prompts, before=prompts, keeps=st.lists(st.booleans(), min_size=6, max_size=6), chunk=st.integers(1, 30))
def test_who_enters_takes_the_blocks_that_the_pool_gives_it(
    prompts: list[tuple[int, int]], before: list[tuple[int, int]], keeps: list[bool], chunk: int
) -> None:
    """One step after another, each of one that begins; what was there before is held or only cached."""
    pool = BlockPool(NUM_BLOCKS, BLOCK)
    tokens = {f"r{n}": [first] * length for n, (first, length) in enumerate(prompts)}
    for number, ((first, length), is_kept) in enumerate(zip(before, keeps, strict=False)):
        start(pool, f"before-{number}", Kind.OFFLINE, [first] * length)
        assert pool.grow(f"before-{number}", length)
        commit(pool, f"before-{number}", [first] * length, length)
        if not is_kept:
            pool.free(f"before-{number}")
    mirror = ExecutorMirror(Limits(BLOCK, NUM_BLOCKS, 512, 8), Strategy(), lambda key: hash_chain(tokens[key], BLOCK))
    states: list[Request] = [make_request(key, prompt=len(each), max_tokens=9) for key, each in tokens.items()]
    mirror.observe(states, [], pool.num_free, cache=pool.take_cache_changes())
    for key, each in tokens.items():
        num_cached = start(pool, key, Kind.ONLINE, each)
        num_tokens = min(chunk, len(each) - num_cached)
        assert pool.grow(key, num_cached + num_tokens)
        entries = [ScheduledRequest(key, Kind.ONLINE, num_tokens)]
        mirror.start(entries)
        request = mirror.table.get(key)
        assert request is not None
        assert (request.num_computed_tokens, request.num_blocks) == (num_cached, len(pool.table(key)))
        assert mirror.num_free_blocks == pool.num_free
        mirror.finish(entries)
        commit(pool, key, each, num_cached + num_tokens)
        mirror.table.check_integrity()
