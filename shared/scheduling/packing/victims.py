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


def give_back_offline_blocks(
    builder: BatchBuilder, table: RequestTable, num_offline_blocks: int, preempted: Sequence[str] = ()
) -> list[str]:
    """HyGen Alg. 2 lines 14-17: where the online phase ate into M_off, offline requests lose their KV from the tail;
    what the others hold is no longer free for phase two. Returns what it preempted."""
    lost: list[str] = []
    for request in reversed(table.running(Kind.OFFLINE).values()):
        if builder.num_blocks_left >= num_offline_blocks:
            break
        if request.request_id not in preempted and not (request.is_in_flight or request.is_paused):
            lost.append(request.request_id)
            num_offline_blocks -= min(request.num_blocks, num_offline_blocks)
    builder.num_blocks_left = max(0, builder.num_blocks_left - num_offline_blocks)
    return lost


def schedulable(table: RequestTable, kind: Kind, preempted: Sequence[str] = ()) -> list[Request]:
    """Running requests that the step may take and that may lose their KV for it, in order."""
    return [r for r in table.running(kind).values() if r.request_id not in preempted and not r.is_in_flight]
