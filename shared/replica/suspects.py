"""Whose doing it was that an engine step failed."""

from collections.abc import Sequence as Seq

from msgspec.structs import replace

from shared.scheduling.request import ONLINE
from shared.scheduling.schedule import Schedule


class Suspects:
    """Requests that were in a step that failed, until a step gives them a token. They run apart from the others, in
    groups that each failure halves, down to the one that fails alone, and that each success makes larger. After a step
    in which none of them got a token, as with a part of a prompt, it is the turn of the others where online requests
    are among these: a long prompt would keep them waiting."""

    def __init__(self) -> None:
        self._request_ids: dict[str, None] = {}
        self._group_size = 1
        self._gained_nothing = False  # in the suspects' last step

    def __bool__(self) -> bool:
        return bool(self._request_ids)

    def add(self, request_ids: Seq[str]) -> None:
        """A step with exactly these has failed."""
        self._request_ids |= dict.fromkeys(request_ids)
        self._group_size = max(1, len(request_ids) // 2)
        self._gained_nothing = False

    def clear(self, request_id: str) -> None:
        """It got a token; nothing where it was none."""
        if request_id in self._request_ids:
            del self._request_ids[request_id]
            self._group_size += 1
            self._gained_nothing = False

    def forget(self, request_id: str) -> None:
        """It has left."""
        self._request_ids.pop(request_id, None)

    def group_of(self, schedule: Schedule) -> Schedule:
        """What of a schedule may run in one step: the next of the suspects, or the others in their turn; all where no
        suspect is in it."""
        group = [entry for entry in schedule.entries if entry.request_id in self._request_ids]
        if not group:
            return schedule
        others = [entry for entry in schedule.entries if entry.request_id not in self._request_ids]
        is_their_turn = self._gained_nothing and any(entry.kind is ONLINE for entry in others)
        self._gained_nothing = not is_their_turn
        return replace(schedule, entries=others if is_their_turn else group[: self._group_size])
