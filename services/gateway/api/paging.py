"""Lists as OpenAI's clients page through them."""

from collections.abc import Sequence
from typing import TypeVar

from shared.openai.errors import RequestError
from shared.openai.ids import created_s_of
from shared.openai.objects import Page
from shared.protocol.batches import Batch, FileObject

R = TypeVar("R", FileObject, Batch)


def page(records: Sequence[R], after: str | None, limit: int, newest_first: bool = True) -> Page[R]:
    """At most ``limit`` records that follow the one whose id is ``after``, which may be gone by now: who pages may
    delete what it has seen. Raises RequestError for an id that never was."""
    ordered = sorted(records, key=_key, reverse=newest_first)
    if after is not None:
        place = _place_of(after, ordered)
        ordered = [record for record in ordered if (_key(record) < place if newest_first else _key(record) > place)]
    data = ordered[:limit]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data, first_id, last_id, has_more=limit < len(ordered))


def _place_of(id: str, records: Sequence[FileObject | Batch]) -> tuple[int, str]:
    for record in records:
        if record.id == id:
            return _key(record)
    created_s = created_s_of(id)
    if created_s is None:
        raise RequestError(f"after: no such id: {id}", "after")
    return created_s, id


def _key(record: FileObject | Batch) -> tuple[int, str]:
    return record.created_at, record.id
