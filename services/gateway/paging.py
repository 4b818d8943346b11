"""Lists as OpenAI's clients page through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from shared.openai.errors import RequestError


class Record(Protocol):
    """A file or a batch."""

    @property
    def id(self) -> str: ...

    @property
    def created_at(self) -> int: ...


R = TypeVar("R", bound=Record)


def page(
    records: Sequence[R], show: Callable[[R], dict[str, Any]], after: str | None, limit: int, newest_first: bool = True
) -> dict[str, Any]:
    """At most ``limit`` records that follow the one whose id is ``after``. Raises RequestError for an unknown one."""
    ordered = sorted(records, key=lambda record: (record.created_at, record.id), reverse=newest_first)
    start = 0
    if after is not None:
        ids = [record.id for record in ordered]
        if after not in ids:
            raise RequestError(f"after: no such id: {after}", "after")
        start = ids.index(after) + 1
    data = [show(record) for record in ordered[start : start + limit]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(ordered),
    }
