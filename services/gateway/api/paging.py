"""Lists as OpenAI's clients page through them."""

from collections.abc import Sequence
from typing import TypeVar

from shared.openai.errors import RequestError
from shared.openai.ids import created_s_of
from shared.openai.objects import Page
from shared.protocol.batches import Batch, FileObject

R = TypeVar("R", FileObject, Batch)


def page(records: Sequence[R], after: str | None, limit: int, newest_first: bool = True) -> Page[R]:
    """At most ``limit`` that follow the id ``after``, which may be gone by now. Raises RequestError if it never was."""
    ordered = sorted(records, key=_key, reverse=newest_first)
    if after is not None:
        created_at = {record.id: record.created_at for record in records}.get(after, created_s_of(after))
        if created_at is None:
            raise RequestError(f"after: no such id: {after}", "after")
        place = created_at, after
        ordered = [record for record in ordered if (_key(record) < place if newest_first else _key(record) > place)]
    data = ordered[:limit]
    first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
    return Page(data, first_id, last_id, has_more=limit < len(ordered))


def _key(record: FileObject | Batch) -> tuple[int, str]:
    return record.created_at, record.id
