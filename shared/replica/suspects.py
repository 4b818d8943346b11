"""Whose doing it was that an engine step failed."""

from collections.abc import Sequence as Seq

from msgspec.structs import replace

from shared.scheduling.schedule import Schedule


class Suspects:
    """Requests that were in a step that failed, until a step gives them a token. They run apart from the others, in
    groups that each failure halves, down to the one that fails alone, and that each success makes larger."""

    def __init__(self) -> None:
        self._request_ids: dict[str, None] = {}
        self._group_size = 1

    def __bool__(self) -> bool:
        return bool(self._request_ids)

    def add(self, request_ids: Seq[str]) -> None:
        """A step with exactly these has failed."""
        self._request_ids |= dict.fromkeys(request_ids)
        self._group_size = max(1, len(request_ids) // 2)

    def clear(self, request_id: str) -> None:
        """It got a token; nothing where it was none."""
        if request_id in self._request_ids:
            del self._request_ids[request_id]
            self._group_size += 1

    def forget(self, request_id: str) -> None:
        """It has left."""
        self._request_ids.pop(request_id, None)

    def group_of(self, schedule: Schedule) -> Schedule:
        """What of a schedule may run in one step: the next of the suspects, or all where none is in it."""
        group = [entry for entry in schedule.entries if entry.request_id in self._request_ids]
        return replace(schedule, entries=group[: self._group_size]) if group else schedule
