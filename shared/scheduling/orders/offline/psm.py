"""The depth-first order of the prefix trie: HyGen Alg. 3."""

from collections.abc import Iterator

from shared.scheduling.orders.offline.order import LearnsNothing, Turn
from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


class PsmOrder(PrefixTrie, LearnsNothing):
    """Prefix sharing maximization, HyGen Alg. 3: what shares a prompt's beginning runs together, whosever it is."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self._last: dict[str, bytes] = {}  # reader to the prompt that it took last

    def take(self, request_id: str, reader: str | None = None) -> None:
        prompt = self.hold(request_id)
        if reader is not None:
            self._last[reader] = prompt

    def leave(self, reader: str) -> None:
        self._last.pop(reader, None)

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        reader = view.reader
        others = [prompt for other, prompt in self._last.items() if other != reader] if reader is not None else []
        return self.depth_first(others, turn)
