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
        batch_keys = [entry for entry in await tools.batch_keys.entries() if entry.value is not None]
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
        objects = [name for name, _ in self.objects.items() & now.objects.items()]
        stored = [subject for subject, _ in self.stored.items() & now.stored.items()]
        keys = self.keys.items() & now.keys.items()
        for name in sorted(objects):
            await tools.objects.delete(name)
        await tools.objects.remove_unneeded(sorted(stored))
        for key, revision in sorted(keys):
            with contextlib.suppress(ConflictError):
                await tools.batch_keys.delete(key, revision)
        return len(objects) + len(stored) + len(keys)
