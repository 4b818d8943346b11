"""A small typed wrapper over nats-py: live messages, durable streams, key-value buckets and objects.

It reconnects without limit and says so in the log. What streams, buckets and objects there are is asked for until the
bus is there to tell. Nothing else here retries an operation by itself: one that the bus did not confirm raises
BusError, and its caller knows whether repeating it is safe.
"""

from shared.bus import unused_by_nats  # noqa: F401

# isort: split
from functools import partial
from typing import TypeVar

import nats.js.errors
from nats.js.api import KeyValueConfig, ObjectStoreConfig
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from shared.bus.buckets import NEVER_WRITTEN, Bucket, Entry
from shared.bus.connection import failing_as
from shared.bus.live import LiveMessages, Subscription
from shared.bus.objects import GrowingObject, Objects
from shared.bus.streams import Stored, Streams
from shared.cancellation import check_cancelled
from shared.protocol import subjects

__all__ = ["NEVER_WRITTEN", "Bucket", "Bus", "Entry", "GrowingObject", "Objects", "Stored", "Subscription"]

T = TypeVar("T")

DUPLICATE_WINDOW_S = 120.0  # nats-py's, of a bucket; the server wants none that is longer than what it keeps


class Bus(LiveMessages, Streams):
    """One connection of one process. Make it with ``Bus.connect``."""

    async def bucket(self, name: str, record_type: type[T], max_age_s: float | None = None) -> Bucket[T]:
        """The KV bucket, created where absent. ``max_age_s``: so long after its last change the server keeps a record,
        also one that is there already; None leaves that as it is, and a new one keeps its records for ever."""
        make = partial(self._key_value, name, max_age_s)
        kv = await self.through_reconnects(make)
        check_cancelled()
        return Bucket(self, kv, name, record_type, make)

    async def objects(self) -> Objects:
        """The object bucket, created where absent."""
        return Objects(self, await self.through_reconnects(self._object_store))

    async def _key_value(self, name: str, max_age_s: float | None) -> KeyValue:
        with failing_as(f"bucket {name}"):
            try:
                kv = await self._js.key_value(name)
            except nats.js.errors.BucketNotFoundError:
                kv = await self._js.create_key_value(KeyValueConfig(bucket=name, ttl=max_age_s, replicas=self.replicas))
            if max_age_s is not None and (await kv.status()).ttl != max_age_s:
                config = (await self._js.stream_info(f"KV_{name}")).config
                window_s = min(max_age_s, DUPLICATE_WINDOW_S)
                await self._js.update_stream(config.evolve(max_age=max_age_s, duplicate_window=window_s))
        return kv

    async def _object_store(self) -> ObjectStore:
        name = subjects.OBJECTS_BUCKET
        with failing_as(f"object bucket {name}"):
            try:
                return await self._js.object_store(name)
            except (nats.js.errors.BucketNotFoundError, nats.js.errors.NotFoundError):
                config = ObjectStoreConfig(bucket=name, replicas=self.replicas)
                return await self._js.create_object_store(name, config=config)
