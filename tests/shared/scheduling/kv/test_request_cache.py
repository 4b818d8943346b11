"""What a waiting request finds in a prefix cache, against what the pool gives it."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.request_cache import NO_CACHE, Found, HashedRequests
from shared.scheduling.request import Kind
from tests.shared.scheduling.factories import make_request
from tests.shared.scheduling.kv.cache_listeners import commit, start

BLOCK = 4
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=20)


@given(before=st.lists(st.tuples(prompts, st.booleans()), max_size=4), prompt=prompts, num_known=st.integers(0, 6))
def test_what_is_found_is_what_the_pool_gives(
    before: list[tuple[list[int], bool]], prompt: list[int], num_known: int
) -> None:
    """Also where not all of its hashes are known; somebody holds some of what was computed before."""
    pool = BlockPool(64, BLOCK)
    for number, (tokens, is_held) in enumerate(before):
        start(pool, str(number), Kind.ONLINE, tokens)
        assert pool.grow(str(number), len(tokens))
        commit(pool, str(number), tokens, len(tokens))
        if not is_held:
            pool.free(str(number))
    hashes = hash_chain(prompt, BLOCK, num_known)
    found = HashedRequests(pool, BLOCK, lambda request_id: hashes).found(make_request("new", prompt=len(prompt)))
    num_free = pool.num_free
    assert found.num_tokens == pool.start("new", Kind.ONLINE, len(prompt), hashes) < len(prompt)
    assert found.num_tokens // BLOCK - found.num_held_blocks == num_free - pool.num_free


def test_where_there_is_no_cache_nothing_is_found() -> None:
    assert NO_CACHE.found(make_request()) == Found(0, 0)
