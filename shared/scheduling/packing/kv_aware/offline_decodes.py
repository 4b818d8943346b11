"""Offline decodes whose KV is there, by what they earn for their time."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.kv_aware.worth import Worth
from shared.scheduling.request import Request


class OfflineDecodes:
    """They go on in the order of their start; where free blocks are wanted, those last that take a block with their
    next token, since that may be a wanted one.

    By Eq. 4 alone the one that reads the least would be first. Where not all fit the time, those with long contexts
    would then hold KV for nothing, some for as long as shorter ones come; document QA gained nothing by it.
    """

    def __init__(self, builder: BatchBuilder, worth: Worth, decodes: Sequence[Request]) -> None:
        self._builder = builder
        self._worth = worth
        self._groups: list[deque[Request]] = []
        if worth.punishes:
            self._add_group(each for each in decodes if not builder.num_taken_blocks(each, 1))
            self._add_group(each for each in decodes if builder.num_taken_blocks(each, 1))
        else:
            self._add_group(decodes)

    def add_while(self, least_rate: float) -> bool:
        """The next of them, as long as it earns so much; who does not fit is left out. True where any was added."""
        num_before = len(self._builder.entries)
        while self._groups and self._builder.has_room:
            rates = [self._rate(each[0]) for each in self._groups]
            best = max(rates)
            if best < least_rate:
                break
            group = self._groups[rates.index(best)]
            if len(self._groups) == 1 and self._all_earn(group, least_rate):
                self._add_all(group)
            else:
                self._builder.try_decode(group.popleft(), bounded=True)
            self._groups = [each for each in self._groups if each]
        return len(self._builder.entries) > num_before

    def _all_earn(self, group: Iterable[Request], least_rate: float) -> bool:
        """Also the one that reads the most."""
        return least_rate == -math.inf or self._rate(max(group, key=attrgetter("num_computed_tokens"))) >= least_rate

    def _add_all(self, group: deque[Request]) -> None:
        for _ in range(self._builder.add_bounded_decodes(list(group))):
            group.popleft()
        while group:
            self._builder.try_decode(group.popleft(), bounded=True)

    def _rate(self, request: Request) -> float:
        return self._worth.of_decode(request).rate

    def _add_group(self, decodes: Iterable[Request]) -> None:
        group = deque(decodes)
        if group:
            self._groups.append(group)
