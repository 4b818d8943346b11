"""Who runs, and who loses its KV blocks so that others can run."""

from collections.abc import Callable, Sequence

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable


class Victims:
    """Running requests that may lose their KV for one of them that is added by that: the last first, and none that is
    in the batch already (PERFORM_PREEMPTION, HyGen Alg. 1 line 23)."""

    def __init__(self, builder: BatchBuilder, running: list[Request]) -> None:
        self._builder = builder
        self._left = list(running)
        self.lost: list[str] = []

    def make_room(self, request: Request, add: Callable[[Request], bool]) -> bool:
        """Free blocks until one more token of ``request`` fits, and ``add`` it, which says whether it did. False where
        it is held for now; then nobody has lost anything."""
        builder, taken = self._builder, list[Request]()
        while (lacks_blocks := builder.lacks_blocks(request)) and (victim := self._last_but(request)) is not None:
            taken.append(victim)
            builder.num_blocks_left += victim.num_blocks
        if not lacks_blocks and add(request):
            self.lost += [each.request_id for each in taken]
            return True
        builder.num_blocks_left -= sum(each.num_blocks for each in taken)
        self._left += reversed(taken)
        return False

    def _last_but(self, request: Request) -> Request | None:
        """Taken out of those left; None where that is ``request`` itself."""
        while self._left and self._left[-1].request_id in self._builder.scheduled:
            self._left.pop()
        return None if not self._left or self._left[-1] is request else self._left.pop()


def schedulable(table: RequestTable, kind: Kind, preempted: Sequence[str] = ()) -> list[Request]:
    """Running requests that the step may take and that may lose their KV for it, in order."""
    idle = [request for request in table.running(kind).values() if not request.num_in_flight_tokens]
    return [request for request in idle if request.request_id not in preempted] if preempted else idle
