"""The depth-first order of the prefix trie: HyGen Alg. 3."""

from collections.abc import Iterator

from shared.scheduling.orders.offline.order import Turn
from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.orders.offline.view import NOBODY, OfflineView
from shared.scheduling.request import Request


class PsmOrder:
    """Prefix sharing maximization, HyGen Alg. 3: what shares a prompt's beginning runs together, whosever it is."""

    def __init__(self, block_size: int) -> None:
        """``block_size``: tokens of a block. Raises ValueError where it is under 1."""
        self._trie = PrefixTrie(block_size)
        self._last: dict[str, bytes] = {}  # reader to the prompt that it took last

    @property
    def num_waiting(self) -> int:
        return self._trie.num_waiting

    def add(self, request: Request, prompt: bytes, group: str = "") -> None:
        self._trie.insert(request, prompt, group)

    def take(self, request_id: str, reader: str | None = None) -> None:
        self._trie.hold(request_id)
        if reader is not None:
            self._last[reader] = self._trie.prompt(request_id)

    def leave(self, reader: str) -> None:
        self._last.pop(reader, None)

    def give_back(self, request_id: str) -> None:
        self._trie.resume(request_id)

    def remove(self, request_id: str) -> None:
        self._trie.remove(request_id)

    def in_order(self, view: OfflineView = NOBODY, turn: Turn | None = None) -> Iterator[Request]:
        reader = view.reader
        others = [prompt for other, prompt in self._last.items() if other != reader] if reader is not None else []
        return self._trie.in_order(others, turn)

    def check_integrity(self) -> None:
        self._trie.check_integrity()
