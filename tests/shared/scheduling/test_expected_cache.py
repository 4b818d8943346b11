"""The cache as it will be, against one who has it all in one set."""

from hypothesis import given
from hypothesis import strategies as st

from shared.scheduling.kv.block_hash import HASH_BYTES
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges, CachedPrefix, PrefixCacheMirror
from shared.scheduling.planning.expected_cache import ExpectedCache
from shared.scheduling.request import OFFLINE, ONLINE, Kind

HASHES = [bytes([number]) * HASH_BYTES for number in range(1, 7)]  # of the blocks of one prompt
places = st.sets(st.integers(0, 5))


@given(
    num_told=st.integers(0, 6),
    told_held=places,
    expected=st.lists(st.tuples(st.sampled_from(Kind), places), max_size=4),
    is_by_kind=st.booleans(),
)
def test_what_steps_are_to_compute_is_found_and_held_by_their_kind_or_both(
    num_told: int, told_held: set[int], expected: list[tuple[Kind, set[int]]], is_by_kind: bool
) -> None:
    held = b"".join(HASHES[place] for place in range(num_told) if place in told_held)
    free = b"".join(HASHES[place] for place in range(num_told) if place not in told_held)
    told = PrefixCacheMirror()
    told.apply(CacheChanges(1, True, (BlockChanges(held, free),)))
    cache = ExpectedCache(told, is_by_kind)
    for kind, computed in expected:
        cache.hold([HASHES[place] for place in sorted(computed)], kind)
    for kind in (ONLINE, OFFLINE):
        own = {place for each, computed in expected if each is kind or not is_by_kind for place in computed}
        num_found = next((place for place in range(6) if place >= num_told and place not in own), 6)
        num_held = sum(place in own or (place < num_told and place in told_held) for place in range(num_found))
        assert cache.look_up(HASHES, kind) == CachedPrefix(num_found, num_held)
        assert cache.look_up(HASHES[:2], kind).num_blocks == min(num_found, 2)
    cache.forget()
    assert all(cache.look_up(HASHES, kind) == told.look_up(HASHES, kind) for kind in Kind)
