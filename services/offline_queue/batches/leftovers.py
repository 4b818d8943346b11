"""What kills left half done: contents without a record, chunks without an object, Idempotency-Keys without a batch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from services.offline_queue.batches.lines import lines_object
from services.offline_queue.batches.tools import BatchTools
from shared.errors import ConflictError


@dataclass(frozen=True)
class Leftovers:
    """As it was at one moment; some of it may be work that goes on. ``objects``: that no record names, and when each
    was stored; ``stored``: subjects that no object needs, and when something was added last; ``keys``: Idempotency-Keys
    and their revisions."""

    objects: dict[str, float]
    stored: dict[str, float]
    keys: dict[str, int]

    @classmethod
    async def found(cls, tools: BatchTools) -> Leftovers:
        """Raises BusError."""
        objects = await tools.objects.all()  # before the records: contents are there before their record is
        batch_keys = await tools.batch_keys.entries()
        batches = await tools.batches.keys()
        named = await tools.files.keys() | {lines_object(batch_id) for batch_id in batches}
        return cls(
            {name: stored_s for name, stored_s in objects.items() if name not in named},
            await tools.objects.unneeded(),
            {entry.key: entry.revision for entry in batch_keys if entry.value and entry.value.batch_id not in batches},
        )

    async def remove_if_still(self, tools: BatchTools) -> int:
        """What is just as it was; how much that is. So its age goes by no clock but that of whoever waits between, and
        none that is set makes an upload old while it is at work. Raises BusError."""
        now = await Leftovers.found(tools)
        objects = sorted(self.objects.items() & now.objects.items())
        stored = sorted(self.stored.items() & now.stored.items())
        keys = sorted(self.keys.items() & now.keys.items())
        for name, _ in objects:
            await tools.objects.delete(name)
        await tools.objects.remove_unneeded(subject for subject, _ in stored)
        for key, revision in keys:
            with contextlib.suppress(ConflictError):
                await tools.batch_keys.delete(key, revision)
        return len(objects) + len(stored) + len(keys)
