"""How many offline requests begin with what."""

from collections import OrderedDict
from collections.abc import Iterable

from shared.scheduling.orders.offline.prefix_trie import PrefixTrie
from shared.scheduling.packed_prompt import TOKEN_BYTES
from shared.scheduling.request import Kind, Request


class PromptDemand:
    """All requests of a pool, waiting or taken, by their prompts: rc of Echo (section 4.2) of any prefix is how many of
    them are below it in a trie. Where it is begun over a full pool, what was there before is taken in bit by bit, and
    not counted until then."""

    def __init__(self, block_size: int, there: Iterable[tuple[str, bytes]] = ()) -> None:
        """``block_size``: tokens of a block, by which prompts are compared; ``there``: ids of requests
        with their packed prompts."""
        self._block_bytes = block_size * TOKEN_BYTES
        self._trie = PrefixTrie(block_size)
        self._to_come = OrderedDict(there)
        self.num_changes = 0  # of what is counted

    @property
    def num_requests(self) -> int:
        """Counted, or to be."""
        return self._trie.num_waiting + len(self._to_come)

    def add(self, request_id: str, prompt: bytes) -> None:
        """``prompt``: packed, kept by reference. Raises ValueError for an id that is here already."""
        self.num_changes += 1
        num_tokens = len(prompt) // TOKEN_BYTES
        self._trie.add(Request(request_id, Kind.OFFLINE, num_tokens, num_tokens), prompt)

    def remove(self, request_id: str) -> None:
        """It has ended. Raises KeyError for an unknown id."""
        if request_id in self._to_come:
            del self._to_come[request_id]
        else:
            self.num_changes += 1
            self._trie.remove(request_id)

    def catch_up(self, count: int) -> None:
        """Take in so many of those that were there before."""
        for _ in range(min(count, len(self._to_come))):
            self.add(*self._to_come.popitem(last=False))

    def runs(self, prompt: bytes, first: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """Along a packed prompt, whose request need not be here, the blocks in [first, end) and how many requests begin
        with the prompt up to each: (end, requests) of each run of blocks with the same number, in order. ``end``: the
        prompt's full blocks unless given."""
        end = len(prompt) // self._block_bytes if end is None else end
        runs: list[tuple[int, int]] = []
        for end_byte, count in (*self._trie.along(prompt), (end * self._block_bytes, 0)):
            run_end = min(end, end_byte // self._block_bytes)
            if run_end <= max(first, runs[-1][0] if runs else 0):
                continue
            if runs and runs[-1][1] == count:
                runs.pop()
            runs.append((run_end, count))
        return runs

    def check_integrity(self) -> None:
        """Raises AssertionError where the trie's parts disagree."""
        self._trie.check_integrity()
