"""What is asked of an eviction policy."""

from collections.abc import Collection, Iterator
from typing import ClassVar, Protocol

from shared.scheduling.request import Kind


class Eviction(Collection[int], Protocol):
    """The cached blocks of one pool that nobody holds, by block id, and which of them is given up first. All is O(1),
    or near to it, for each block: thousands are let go of in a step."""

    def __iter__(self) -> Iterator[int]:
        """In the order in which they are given up."""

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        """The last holder let go of a block, in which the contents with the hash ``key`` can be found, as in no other.
        ``kind``: online once an online request has held them. ``num_hits``: requests that have found them since they
        were computed."""

    def hold(self, block_id: int) -> None:
        """Somebody holds one of them again, or what could be found in it is worthless."""

    def evict(self) -> int:
        """Give up the next one; there is one."""

    # What offline requests will read, for a policy that goes by it. Others are not told, and need no answers.

    needs_readers: ClassVar[bool] = False  # it is to be told how many readers contents have

    @property
    def num_wanted(self) -> int:
        """Of its blocks, those whose contents some offline request will read, as far as it is told."""
        return 0

    def count_readers(self, key: bytes, num_readers: int) -> None:
        """So many offline requests, waiting and running, will read the contents with this hash, be they in a block
        here, in one that is held, or not computed yet: rc of Echo (section 4.2). It holds until it is told otherwise; 0
        forgets them."""
        del key, num_readers
