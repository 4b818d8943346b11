"""Online requests' cached blocks are kept before offline ones'."""

from collections.abc import Iterator

from shared.scheduling.kv.eviction.eviction import Eviction
from shared.scheduling.kv.eviction.lru import Lru
from shared.scheduling.request import ONLINE, Kind


class OnlineFirst(Eviction):
    """What online requests have computed or found goes after all that only offline requests have, each least recently
    used first: the priorities of Echo (section 4.2) without its counts of offline requests to come."""

    def __init__(self) -> None:
        self._offline, self._online = Lru(), Lru()

    def __len__(self) -> int:
        return len(self._offline) + len(self._online)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._offline or block_id in self._online

    def __iter__(self) -> Iterator[int]:
        yield from self._offline
        yield from self._online

    def let_go(self, block_id: int, key: bytes, kind: Kind, num_hits: int) -> None:
        (self._online if kind is ONLINE else self._offline).let_go(block_id, key, kind, num_hits)

    def hold(self, block_id: int) -> None:
        (self._online if block_id in self._online else self._offline).hold(block_id)

    def evict(self) -> int:
        return (self._offline or self._online).evict()
