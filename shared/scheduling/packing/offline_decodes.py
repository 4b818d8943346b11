"""Offline decodes whose KV is there, by what they earn for their time."""

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.worth import Worth
from shared.scheduling.request import Request


class OfflineDecodes:
    """The less a decode reads, the less it costs. So they are sorted once by that: all together where no block is
    wanted, else those apart that take a block with their next token, since that may be a wanted one."""

    def __init__(self, builder: BatchBuilder, worth: Worth, decodes: Sequence[Request]) -> None:
        self._builder = builder
        self._worth = worth
        self._groups: list[list[Request]] = []  # each with the best last
        if worth.punishes:
            self._add_group(each for each in decodes if not builder.num_taken_blocks(each, 1))
            self._add_group(each for each in decodes if builder.num_taken_blocks(each, 1))
        else:
            self._add_group(decodes)

    def add_while(self, least_rate: float) -> bool:
        """The best of them, for as long as one earns so much and fits. True where any was added."""
        num_before = len(self._builder.entries)
        while self._groups:
            best, group = max(((self._rate(each[-1]), each) for each in self._groups), key=lambda pair: pair[0])
            if best < least_rate:
                break
            if len(self._groups) == 1 and (least_rate == -math.inf or self._rate(group[0]) >= least_rate):
                self._add_all(group)
            elif not self._add(group.pop()):
                group.clear()
            self._groups = [each for each in self._groups if each]
        return len(self._builder.entries) > num_before

    def _add_all(self, group: list[Request]) -> None:
        if self._builder.latency_budget_ms == math.inf:
            num_added = self._builder.add_decodes(reversed(group))
            del group[len(group) - num_added :]
        while group:
            if not self._add(group.pop()):
                group.clear()

    def _add(self, request: Request) -> bool:
        """False where there is no room or time for those that cost more either."""
        return self._builder.try_decode(request, bounded=True) or self._builder.lacks_blocks(request)

    def _rate(self, request: Request) -> float:
        return self._worth.of_decode(request).rate

    def _add_group(self, decodes: Iterable[Request]) -> None:
        group = sorted(decodes, key=attrgetter("num_computed_tokens"))
        if group:
            self._groups.append(group[::-1])
