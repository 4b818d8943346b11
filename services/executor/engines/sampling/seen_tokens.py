"""Which tokens texts have by now, without counting all of them anew at each step."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from kernels.slots import Ints

MAX_TEXTS = 512  # that are kept; one that was dropped is counted again
FEW_TOKENS = 8  # new ones that are counted one by one


@dataclass(slots=True)
class Counted:
    """One text. ``ids``: its different tokens; ``counts``: how often it has each."""

    token_ids: list[int] = field(default_factory=list)
    ids: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def become(self, token_ids: list[int]) -> None:
        """As a rule the text that it is with a token more."""
        num_known = len(self.token_ids)
        new = token_ids[num_known:]
        if len(new) > FEW_TOKENS or token_ids[:num_known] != self.token_ids:
            self.ids, self.counts = np.unique(np.array(token_ids, dtype=np.int64), return_counts=True)
            self.token_ids = list(token_ids)
            return
        for token_id in new:
            self._add(token_id)
        self.token_ids += new

    def _add(self, token_id: int) -> None:
        found = (self.ids == token_id).nonzero()[0]
        if len(found):
            self.counts[found[0]] += 1
        else:
            self.ids, self.counts = np.concatenate((self.ids, [token_id])), np.concatenate((self.counts, [1]))


class SeenTokens:
    """What is kept of a text is compared with it first, so that it may be any other by then."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, int], Counted] = OrderedDict()  # the last used at the end

    def of(self, request_id: str, token_ids: list[int], start: int = 0) -> tuple[Ints, Ints]:
        """Of a request's tokens from ``start`` on: the different ones, and how often each is there."""
        counted = self._texts.pop((request_id, start), None) or Counted()
        counted.become(token_ids[start:])
        self._texts[request_id, start] = counted
        if len(self._texts) > MAX_TEXTS:
            self._texts.popitem(last=False)
        return counted.ids, counted.counts.copy()
