"""Who runs, and who loses its KV blocks so that others can run."""

from collections.abc import Sequence

from shared.scheduling.packing.batch import BatchBuilder
from shared.scheduling.request import Kind, Request
from shared.scheduling.table import RequestTable


class Victims:
    """Running requests that may lose their KV for one of them: the last first, and none that is in the batch already
    (PERFORM_PREEMPTION, HyGen Alg. 1 line 23)."""

    def __init__(self, builder: BatchBuilder, running: list[Request]) -> None:
        self._builder = builder
        self._left = list(running)
        self.lost: list[str] = []

    def make_room(self, request: Request) -> bool:
        """Free blocks until one more token of ``request`` fits; False where it must be held for now."""
        while self._builder.lacks_blocks(request):
            while self._left and self._left[-1].request_id in self._builder.scheduled:
                self._left.pop()
            if not self._left or self._left[-1] is request:
                return False
            victim = self._left.pop()
            self._builder.num_blocks_left += victim.num_blocks
            self.lost.append(victim.request_id)
        return True


def schedulable(table: RequestTable, kind: Kind, preempted: Sequence[str] = ()) -> list[Request]:
    """Running requests that the step may take and that may lose their KV for it, in order."""
    idle = [request for request in table.running(kind).values() if not request.num_in_flight_tokens]
    return [request for request in idle if request.request_id not in preempted] if preempted else idle
