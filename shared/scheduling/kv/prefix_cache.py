"""What a prefix cache has, and how that is told to those who are not there.

A pool's log (``cache_log``) makes messages with running versions, and ``PrefixCacheMirror`` applies them. What a
message says of a block is how it is from then on, not what happened to it.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Annotated, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from shared.bounds import Count
from shared.scheduling.kv.block_hash import HASH_BYTES, split_hashes
from shared.scheduling.request import Kind

MAX_EARLY = 64  # messages

T = TypeVar("T")


class CachedPrefix(NamedTuple):
    """Leading blocks of a prompt that are found. ``num_held`` of them are held by others, so that taking them costs
    none of the free blocks, as taking the rest does."""

    num_blocks: int
    num_held: int


def pair_by_kind(make: Callable[[], T], is_by_kind: bool) -> tuple[T, T]:
    """(online's, offline's); the same one twice where requests of either kind find the same."""
    online = make()
    return online, make() if is_by_kind else online


class PrefixCache(Protocol):
    """Which beginnings of prompts need no computing."""

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """For a request of this kind. ``hashes``: of its leading blocks, but for one that holds its last token: at
        least that token is left to compute."""


class BlockChanges(msgspec.Struct, frozen=True, array_like=True):
    """Hashes of blocks, one behind the other, by what they are from here on."""

    held: bytes = b""  # found; by somebody whose room nobody may take
    free: bytes = b""  # found; with its room there for anybody
    gone: bytes = b""  # not to be found

    def __post_init__(self) -> None:
        if (len(self.held) | len(self.free) | len(self.gone)) % HASH_BYTES:
            raise ValueError(f"hashes have {HASH_BYTES} bytes each")


class CacheChanges(msgspec.Struct, frozen=True, array_like=True):
    """What is different from version ``version - 1`` on, or all that is there where it is whole. ``blocks``: empty
    for no change, and the version is that of the last one; one entry where requests of either kind find them, two
    where those of one kind do: online, offline."""

    version: Count = 0
    is_whole: bool = False
    blocks: Annotated[tuple[BlockChanges, ...], Meta(max_length=len(Kind))] = ()

    def within(self, num_bytes: int) -> "CacheChanges":
        """Of a whole one so much that its hashes have no more bytes, the held ones first. Whoever is told it does not
        find the others."""
        most = num_bytes // max(1, len(self.blocks)) // HASH_BYTES * HASH_BYTES
        held = (each.held[:most] for each in self.blocks)
        kept = (BlockChanges(few, each.free[: most - len(few)]) for few, each in zip(held, self.blocks, strict=True))
        return CacheChanges(self.version, self.is_whole, tuple(kept))


class PrefixCacheMirror:
    """A pool's prefix cache as its messages tell it, from the pool's beginning or from a whole message on. What is
    known when a gap is noticed is forgotten: nothing is found until a whole message comes. Those that come before it
    and go on from it are not lost."""

    def __init__(self) -> None:
        self.version = 0
        self.is_stale = False
        self._early: deque[CacheChanges] = deque(maxlen=MAX_EARLY)  # since the gap
        self._held: Sequence[dict[bytes, bool]] = ({},)  # one for each entry of CacheChanges.blocks

    def __len__(self) -> int:
        """Blocks that are found, by either kind."""
        return sum(map(len, self._held))

    def apply(self, changes: CacheChanges) -> bool:
        """False where a message before it is missing. Those that come late, from before a whole one, change
        nothing."""
        if changes.version <= self.version and not self.is_stale:
            return True
        if changes.is_whole:
            self._forget(len(changes.blocks))
            self.is_stale = False
        elif self.is_stale:
            self._early.append(changes)
            return False
        elif changes.version > self.version + 1 or len(changes.blocks) not in (len(self._held), len(Kind)):
            self._forget(1)
            self.is_stale = True
            self._early.append(changes)
            return False
        self.version = changes.version
        self._apply(changes.blocks)
        for early in self._take_early():
            self.apply(early)
        return not self.is_stale

    def look_up(self, hashes: Sequence[bytes], kind: Kind) -> CachedPrefix:
        """As of the last message."""
        return count_leading(self._held[kind % len(self._held)].get, hashes)

    def _take_early(self) -> list[CacheChanges]:
        early = list(self._early)
        self._early.clear()
        return early

    def _forget(self, num_maps: int) -> None:
        self._held = tuple({} for _ in range(max(1, num_maps)))

    def _apply(self, blocks: tuple[BlockChanges, ...]) -> None:
        if len(blocks) > len(self._held):
            self._forget(len(blocks))
        for held, changes in zip(self._held, blocks, strict=False):  # a whole one may have none
            held.update(dict.fromkeys(split_hashes(changes.held), True))
            held.update(dict.fromkeys(split_hashes(changes.free), False))
            deque(map(held.pop, split_hashes(changes.gone), repeat(None)), maxlen=0)


def count_leading(find: Callable[[bytes], bool | None], hashes: Sequence[bytes]) -> CachedPrefix:
    """``find``: whether a block is held, None where it is not found."""
    found: list[bool] = list(iter(map(find, hashes).__next__, None))  # up to the first None
    return CachedPrefix(len(found), sum(found))
