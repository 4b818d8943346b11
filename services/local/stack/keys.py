"""API keys of a stack, made and revoked over its bus, or in its store while it does not run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from services.gateway.settings import GatewaySettings, are_keys_required, given_key, no_key
from services.local.stack.data_dir import DataDir, bus_at, stack_on
from services.local.stack.machine import free_port
from services.local.stack.processes.process import Process
from services.local.stack.service_commands import nats_command, own_address
from shared.bus import Bucket, Bus
from shared.bus.address import BusAddress
from shared.errors import ConfigError, ConflictError, NotFoundOnBusError, StackError
from shared.openai.objects import is_well_formed
from shared.protocol import subjects
from shared.protocol.access.api_keys import GIVEN_KEY, ApiKeyRecord, KeyTerms, hash_api_key, key_hint, new_api_key
from shared.protocol.access.key_usage import KeyUsage, UsagePlace
from shared.watch.usage_ledger import stored_usages

CONNECT_S = 5.0  # a server of its own has just started
NATS_STOP_S = 10.0
NO_TERMS = KeyTerms()


class Keys:
    """The buckets of keys, of revoked ones and of what they have used. Make it with ``on`` or ``open_keys``."""

    def __init__(self, records: Bucket[ApiKeyRecord], revoked: Bucket[ApiKeyRecord], usage: Bucket[KeyUsage]) -> None:
        self._records = records
        self._revoked = revoked
        self._usage = usage

    @classmethod
    async def on(cls, bus: Bus) -> Keys:
        """Raises BusError."""
        records = await bus.bucket(subjects.API_KEYS_BUCKET, ApiKeyRecord)
        revoked = await bus.bucket(subjects.REVOKED_API_KEYS_BUCKET, ApiKeyRecord)
        return cls(records, revoked, await bus.bucket(subjects.KEY_USAGE_BUCKET, KeyUsage))

    async def require_any(self, gateway: GatewaySettings) -> None:
        """Raises ConfigError where the gateway would not start for want of a key."""
        given = given_key(gateway)
        is_given = given is not None and not await self.is_revoked(given.key_hash)
        if are_keys_required(gateway) and not is_given and not await self.all():
            raise ConfigError(no_key(gateway))

    async def create(self, name: str, terms: KeyTerms = NO_TERMS) -> str:
        """The key; it is kept nowhere. Raises StackError for a name that is taken or cannot be one."""
        if not is_well_formed(name):
            raise StackError(f"a key's name has 1 to 64 of A-Z, a-z, 0-9, _ and -; {name!r} is none")
        if name == GIVEN_KEY:
            raise StackError(
                f"{name!r} is the key in SLACKWATER_API_KEY, whose files this one would have; choose another"
            )
        key = new_api_key()
        hashed, made_at = hash_api_key(key), int(time.time())
        record = ApiKeyRecord(name, hashed, key_hint(key), made_at, **msgspec.structs.asdict(terms))
        try:
            await self._records.create(name, record)
        except ConflictError as error:
            raise StackError(f"there is a key {name!r} already; revoke it first, or choose another name") from error
        return key

    async def all(self) -> list[ApiKeyRecord]:
        """In the order of their names."""
        records = [entry.value for entry in await self._records.entries() if entry.value is not None]
        return sorted(records, key=lambda record: record.name)

    async def usages(self) -> list[tuple[UsagePlace, KeyUsage]]:
        """Of all keys that there are or were, as far as it was told."""
        return await stored_usages(self._usage)

    async def is_revoked(self, key_hash: str) -> bool:
        """Whether a key with this hash was there, and is refused."""
        try:
            await self._revoked.get(key_hash)
        except NotFoundOnBusError:
            return False
        return True

    async def change(self, name: str, terms: Mapping[str, Any]) -> ApiKeyRecord:
        """With these fields of its KeyTerms; gateways know of it within moments. Raises StackError for an unknown
        name."""
        with _unknown_key_named(name):
            return await self._records.edit(name, lambda record: msgspec.structs.replace(record, **terms))

    async def revoke(self, name: str) -> None:
        """Gateways refuse it within moments and for good, whoever names it. Raises StackError for an unknown name."""
        with _unknown_key_named(name):
            record = (await self._records.get(name)).value
        assert record is not None
        await self._revoked.put(record.key_hash, record)
        await self._records.delete(name)


@contextlib.contextmanager
def _unknown_key_named(name: str) -> Iterator[None]:
    try:
        if not is_well_formed(name):
            raise NotFoundOnBusError(name)
        yield
    except NotFoundOnBusError as error:
        raise unknown_key(name) from error


def unknown_key(name: str) -> StackError:
    """What is said of a name that no key has."""
    return StackError(f"there is no key {name!r}; slackwater key list shows those that there are")


@contextlib.asynccontextmanager
async def open_keys(data_dir: Path, asked: BusAddress | None, makes_store: bool = True) -> AsyncIterator[Keys]:
    """On the given bus, else that of the stack in the data directory; where none runs there, its bus is started for as
    long as this lasts, since a stack may need a key before it can start. ``makes_store``: else one has to be there.
    Raises StackError and BusError."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            _, address = stack_on(data_dir, asked)
        except StackError as error:
            own = DataDir(data_dir)
            if not makes_store and not own.nats_store.is_dir():
                hint = "name the folder of the stack with --data-dir, or its bus with --nats"
                raise StackError(f"no stack has ever run in {own.path}, so that it has no keys; {hint}") from error
            address = await stack.enter_async_context(_own_bus(own))
        bus = await stack.enter_async_context(bus_at(address, "keys", CONNECT_S))
        yield await Keys.on(bus)


@contextlib.asynccontextmanager
async def _own_bus(data_dir: DataDir) -> AsyncIterator[BusAddress]:
    with data_dir.locked():
        port = free_port()
        process = await Process.start(nats_command(data_dir, port))
        try:
            yield own_address(data_dir, port)
        finally:
            await process.terminate(NATS_STOP_S)
