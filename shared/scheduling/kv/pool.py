"""What is asked of a pool of KV blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.bounds import Count
from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.prefix_cache import CacheChanges, PrefixCache
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.request import Kind

NO_OPERATIONS = SlotOperations()


@dataclass(frozen=True, slots=True)
class BlockOwners:
    """Whose the blocks of a pool are: how many of each. Together they are all of them."""

    online: Count = 0  # held by online requests alone
    shared: Count = 0  # by requests of both kinds
    offline: Count = 0  # by offline requests alone: M_off of HyGen Alg. 2
    paused: Count = 0  # by paused offline requests alone, so that others may take them
    cached: Count = 0  # by nobody, with contents that can be found
    empty: Count = 0


class KVPool(PrefixCache, Protocol):
    """All KV blocks of one executor, with prefix caching. A step goes ``start`` for who enters, ``extend`` or else
    ``grow`` for who runs, ``take_operations``; after it ``unlock`` and ``commit``; and ``free`` in the end.

    A pool may let requests be paused: others take their blocks, and they go on with what is left and what was copied
    to the host. What has to do with that has an answer here, for pools that do not.
    """

    num_blocks: int
    block_size: int
    eviction: Eviction  # of its blocks that nobody holds and that can be found

    @property
    def num_free(self) -> int:
        """Blocks that anybody may take."""

    @property
    def num_offline_only(self) -> int:
        """Blocks that only offline requests hold that are not paused: M_off of HyGen Alg. 2."""

    @property
    def num_held_online(self) -> int:
        """Blocks that online requests hold, alone or with others."""
        owners = self.owners()
        return owners.online + owners.shared

    def owners(self) -> BlockOwners:
        """As it is now."""

    def table(self, request_id: str) -> list[int]:
        """The block ids of a request that is not paused, in the order of its tokens; not to be changed."""

    def fills_right(self, kind: Kind) -> bool:
        """Which way requests of this kind fill their blocks."""
        return False

    def take_cache_changes(self) -> CacheChanges:
        """What has changed of what ``look_up`` finds since the last call."""

    def cache_snapshot(self) -> CacheChanges:
        """All that ``look_up`` found when changes were last taken, with their version: the next changes go on from
        there."""

    def start(self, request_id: str, kind: Kind, num_tokens: int, hashes: Sequence[bytes]) -> int:
        """Give a request the cached blocks of its prefix; returns how many of its ``num_tokens`` need no computing.
        At least one token is left to compute. ``hashes``: of its full blocks. Raises ValueError where it has a table
        already."""

    def extend(self, request_id: str, num_slots: int) -> bool:
        """``grow`` for a request whose blocks have room for that and are all there, as with most decodes. False, and
        nothing changed, for any other."""

    def grow(self, request_id: str, num_slots: int) -> bool:
        """Make the request's table cover ``num_slots`` tokens for a step that reads and writes them: nobody may touch
        it before ``unlock``. False, and nothing changed, where blocks are short. Paused requests become whole;
        offline ones may be paused or dropped for it: see ``take_paused`` and ``take_dropped``."""

    def unlock(self, request_id: str, num_computed_tokens: int) -> None:
        """The step has ended; KV is written for so many of its tokens. A request without a table is no error."""

    def commit(self, request_id: str, num_computed_tokens: int, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Make the full blocks among the first ``num_computed_tokens`` findable: their KV is written, or will be before
        anybody reads it. ``hashes`` as for ``start``: of as many blocks as may be found. Returns those of the blocks
        that were not to be found before."""

    def withdraw(self, request_id: str, num_computed_tokens: int) -> Sequence[bytes]:
        """Blocks that ``commit`` made findable before their KV was written, beyond so many tokens, are not to be found:
        it was not. Returns their hashes. A request without a table is no error."""

    def free(self, request_id: str) -> None:
        """Let go of a request's blocks; a request without a table is no error. Its last blocks are reused first,
        since others are less likely to share them."""

    def pause(self, request_id: str) -> None:
        """Its blocks may be taken from here on; it is whole until they are. Nothing where it is paused already."""

    def take_paused(self) -> Sequence[str]:
        """Offline requests that were paused for others since the last call."""
        return ()

    def take_dropped(self) -> Sequence[str]:
        """Offline requests that have lost all their KV since the last call, because the host is full."""
        return ()

    def num_kept_blocks(self, request_id: str) -> int:
        """Blocks of a paused request that others cannot take and in which it can go on."""
        return 0

    def num_missing_slots(self, request_id: str) -> int:
        """Slots to bring back before it can run: M^cpu of BROS (section 4.1), in slots."""
        return 0

    def take_operations(self) -> SlotOperations:
        """What the next step has to copy before its forward pass."""
        return NO_OPERATIONS

    def void(self, failed: SlotOperations, later: Iterable[SlotOperations]) -> Sequence[str]:
        """What failed operations were to write is worthless, and what those of ``later`` steps, which are in flight,
        copy of it. Returns who holds it; each is to be freed."""
        return ()

    def check_integrity(self) -> None:
        """Raises AssertionError where tables, blocks and counts disagree."""
