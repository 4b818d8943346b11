"""Who may enter a step next of the offline requests that wait."""

from collections.abc import Iterator, Sequence
from itertools import chain, filterfalse, islice
from typing import TypeAlias

from shared.scheduling.orders.offline.view import OfflineQueue
from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.packing.kv_aware.worth import Worth
from shared.scheduling.packing.packing import Passing, StepState
from shared.scheduling.request import OFFLINE, Request

MAX_ENTRANTS = 8  # requests of the pool that a step looks at

_Next: TypeAlias = tuple[Request, bool]  # and whether those behind it may pass it where it lacks blocks


class OfflineLine:
    """First who is paused or has lost its KV, then the pool. Of that the first comes first, which is the order's word
    on whose turn it is; the others that a step looks at come by how much of them the cache has, which costs no time.

    Who is not worth its blocks is passed over, and who waits for those of online requests (``Passing``). Where another
    that is held or the pool's first lacks blocks, nobody enters behind it, so that blocks come free for it.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        worth: Worth,
        state: StepState,
        paused: Sequence[Request],
        offline_queue: OfflineQueue,
        reserve_blocks: int,
    ) -> None:
        """``reserve_blocks``: that entrants leave to others, beside what is left for a burst; one more for each that
        enters."""
        self._builder = builder
        self._worth = worth
        self._state = state
        self._reserve_blocks = reserve_blocks
        self._line = _in_line(builder, state, paused, offline_queue, Passing(builder, state))
        self._next: _Next | None = None
        self._is_closed = False

    def close(self) -> None:
        """Nobody enters."""
        self._is_closed = True

    def enter(self, may_wait: bool) -> bool:
        """The next that may enter is added. False where nobody can. Who evicts as much as it earns does where it does
        not have to wait."""
        num_left = self._reserve_blocks + self._state.num_blocks_to_leave(self._builder)
        if num_left > self._builder.num_blocks_left:
            self.close()
        while (following := self._peek()) is not None:
            request, may_be_passed = following
            fits = self._builder.fits_whole(request, num_left)
            if fits and (not may_wait or self._worth.pays(request)):
                return self._add(request)
            if not (fits or may_be_passed):
                self.close()
            self._next = None
        return False

    def _add(self, request: Request) -> bool:
        num_reused = self._builder.num_reused_blocks(request)
        if not self._builder.try_add(request, bounded=True):
            return False
        self._worth.reuse(num_reused)
        self._reserve_blocks += 1
        self._next = None
        return True

    def _peek(self) -> _Next | None:
        if self._is_closed:
            return None
        if self._next is None:
            self._next = next(self._line, None)
        return self._next


def _in_line(
    builder: BatchBuilder,
    state: StepState,
    paused: Sequence[Request],
    offline_queue: OfflineQueue,
    passing: Passing,
) -> Iterator[_Next]:
    """Read lazily, so that the queue sees what those before it have left."""

    def uncached_share(request: Request) -> float:
        return 1.0 - builder.num_computed(request) / request.num_tokens

    for request in filterfalse(passing.is_passed, chain(paused, state.table.waiting(OFFLINE).values())):
        yield request, False
    queue = offline_queue(state.view(builder, passing.is_passed))
    for request in islice(queue, 1):
        yield request, False
    for request in sorted(islice(queue, MAX_ENTRANTS - 1), key=uncached_share):
        yield request, True
