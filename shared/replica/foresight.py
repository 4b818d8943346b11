"""Whether all has come as the scheduler foresaw it."""

from __future__ import annotations

from shared.scheduling.request import Request


class Foresight:
    """A scheduler that is told what is held plans over the expected outcome of the step that runs (CALCULATE expected
    status, HyGen section A.1). Where that has come true, and nothing else has happened, its plan needs no
    reconciliation: it was made from what is here."""

    def __init__(self) -> None:
        self._holds = False
        self._num_free_blocks = 0  # as the scheduler has it by now

    def tell(self, num_free_blocks: int) -> None:
        """The scheduler is told all that is held."""
        self._holds = True
        self._num_free_blocks = num_free_blocks

    def end(self, request: Request) -> None:
        """A request reached its length limit, as was foreseen, and its blocks are thought free."""
        self._num_free_blocks += request.num_freed_blocks

    def err(self) -> None:
        """Something happened that was not foreseen."""
        self._holds = False

    def came_true(self, num_free_blocks: int) -> bool:
        """``num_free_blocks``: as it is. Shared blocks free less than they count."""
        return self._holds and self._num_free_blocks == num_free_blocks
