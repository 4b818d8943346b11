"""What a waiting request finds in a prefix cache, against what the pool gives it."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.kv.prefix_cache import PrefixCacheMirror
from shared.scheduling.kv.request_cache import NO_CACHE, Found, HashedRequests, StepCache
from shared.scheduling.limits import Limits
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
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


@given(
    before=prompts,
    entrants=st.lists(st.tuples(prompts, st.sampled_from(Kind), st.integers(1, 20)), min_size=1, max_size=8),
    left_out=st.integers(-1, 7),
    sharing=st.sampled_from(["recompute", "bidirectional"]),
)
def test_what_entries_before_it_compute_is_found_as_the_pool_gives_it(
    before: list[int], entrants: list[tuple[list[int], Kind, int]], left_out: int, sharing: str
) -> None:
    """Online ones first, each with a chunk of its prompt. One is taken out again before the next is looked at."""
    strategy, told, prompt_of = Strategy(kv_sharing=sharing), PrefixCacheMirror(), dict[str, list[int]]()
    pool, is_by_kind = strategy.make_pool(Limits(BLOCK, 200, 512, 8), 0), strategy.sharing.is_by_kind
    start(pool, "before", Kind.OFFLINE, before)
    assert pool.grow("before", len(before))
    commit(pool, "before", before, len(before))
    told.apply(pool.take_cache_changes())
    requests = HashedRequests(told, BLOCK, lambda request_id: hash_chain(prompt_of[request_id], BLOCK), is_by_kind)
    cache = StepCache(requests, BLOCK)
    for number, (prompt, kind, chunk) in enumerate(sorted(entrants, key=lambda entrant: entrant[1])):
        request = make_request(str(number), kind, prompt=len(prompt))
        prompt_of[request.request_id] = prompt
        found = cache.found(request)
        num_tokens = min(chunk, len(prompt) - found.num_tokens)
        cache.compute(request, found.num_tokens, num_tokens)
        if number == left_out:
            cache.leave_out(request, found.num_tokens, num_tokens)
            continue
        num_free = pool.num_free
        assert found.num_tokens == start(pool, request.request_id, kind, prompt)
        assert found.num_tokens // BLOCK - found.num_held_blocks == num_free - pool.num_free
        assert pool.grow(request.request_id, found.num_tokens + num_tokens)
        commit(pool, request.request_id, prompt, found.num_tokens + num_tokens)


def test_online_requests_find_nothing_of_offline_ones_in_their_step() -> None:
    """They come first in it, whatever was looked at first."""
    hashes = hash_chain(list(range(9)), BLOCK)
    cache = StepCache(HashedRequests(BlockPool(8, BLOCK), BLOCK, lambda request_id: hashes), BLOCK)
    cache.compute(make_request("off", Kind.OFFLINE, prompt=9), 0, 9)
    assert cache.found(make_request("on", Kind.ONLINE, prompt=9)) == Found(0, 0)
    assert cache.found(make_request("other", Kind.OFFLINE, prompt=9)) == Found(8, 2)


def test_where_there_is_no_cache_nothing_is_found() -> None:
    assert NO_CACHE.found(make_request()) == Found(0, 0)
    cache = StepCache(NO_CACHE, BLOCK)
    cache.compute(make_request("first", prompt=9), 0, 9)
    assert cache.found(make_request(prompt=9)) == Found(0, 0)
