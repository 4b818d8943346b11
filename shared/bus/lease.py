"""What one process may be at a time: it holds a key, renews it, and knows when it may have lost it."""

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from shared.bus import Bucket, Bus, Entry
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import (
    BusError,
    ConflictError,
    LeaseLostError,
    NobodyListensError,
    NotFoundOnBusError,
)
from shared.protocol import subjects
from shared.protocol.services import LeaseHolder

logger = logging.getLogger(__name__)

RENEW_S = 2.0
ANSWERED_S = 1.5 * RENEW_S  # since a renewal was sent: with no answer for so long the bus is away
VALID_S = 8.0  # since the last renewal was sent: from then on the holder may have been replaced
EXPIRY_S = 10.0  # of a key that nobody renews, as who waits for it sees it
LOOK_S = 0.5
RELEASE_S = 2.0  # of a process that is killed soon: without it the next one waits until the lease expires
MISSES = 2  # in a row: a holder that reconnects is back on the bus within moments
REPLIES = "_INBOX."


async def is_held(bus: Bus, name: str) -> bool:
    """Whether somebody holds the lease who is there, or may be. Raises BusError where the lease cannot be read."""
    found = await _read(await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder), name)
    return found is not None and await _is_there(bus, found)


async def forget_unless_held(bus: Bus, name: str) -> None:
    """As ``is_held`` has it. Raises BusError, as ConflictError where somebody takes it at this moment."""
    bucket = await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
    found = await _read(bucket, name)
    if found is not None and not await _is_there(bus, found):
        await bucket.delete(name, found.revision)


async def _read(bucket: Bucket[LeaseHolder], name: str) -> Entry[LeaseHolder] | None:
    try:
        return await bucket.get(name)
    except NotFoundOnBusError:
        return None


async def _is_there(bus: Bus, found: Entry[LeaseHolder]) -> bool:
    is_there, _ = await _ask(bus, found)
    return is_there is not False


async def _ask(bus: Bus, found: Entry[LeaseHolder]) -> tuple[bool | None, int | None]:
    """(whether the holder is there, the revision that it holds by now). None of the first: it listens and does not
    answer in time; of the second: it does not tell one."""
    assert found.value is not None
    try:
        told = await bus.request(subjects.holder(found.value.holder_id), None, object, LOOK_S)
    except NobodyListensError:
        return False, None
    except BusError:
        return None, None
    return True, told if isinstance(told, int) else None


class Lease:
    """Who finds it held takes it over once the bus says that nobody listens for the holder, or it was not renewed for
    EXPIRY_S. Every write compares the key's revision, so that of two that try one has it."""

    def __init__(self, bus: Bus, name: str, clock: Clock) -> None:
        self._bus = bus
        self._name = name
        self._clock = clock
        self._own = LeaseHolder(uuid.uuid4().hex, os.getpid(), socket.gethostname())
        self._bucket: Bucket[LeaseHolder]
        self._revision: int | None = None  # None: not held
        self._sent_s = 0.0  # of the last renewal
        self._reconnects = 0  # at that time
        self._was_renewed = asyncio.Event()
        self._why_not_renewed = ""

    async def take(self, on_held: Callable[[LeaseHolder], None]) -> None:
        """Return once it is held here. ``on_held`` is told, again and again, of another holder that answers; what it
        raises comes out of here. Raises BusError where the bus refuses to begin."""
        await self._bus.serve(subjects.holder(self._own.holder_id), object, self._on_asked)
        self._bucket = await self._bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
        known: Entry[LeaseHolder] | None = None
        since_s, misses = 0.0, 0
        while self._revision is None:
            try:
                is_there, found = await self._look(known)
                if found is None:
                    await self._write(None)
                    return
                if found.value == self._own:  # stored, though that was not confirmed
                    await self._write(found.revision)
                    return
                now_s = self._clock.monotonic_s()
                if known is None or found.revision != known.revision:
                    since_s, misses = now_s, 0
                is_other, known = known is None or found.value != known.value, found
                if is_other:
                    continue  # it is asked at once
                misses = 0 if is_there is not False else misses + 1
                if misses >= MISSES or now_s - since_s >= EXPIRY_S:
                    await self._write(found.revision)
                    logger.warning("lease taken over", extra={"lease": self._name, "from": str(found.value)})
                    return
                if is_there and found.value is not None:
                    on_held(found.value)
            except BusError as error:  # another one came first, or the bus is away
                logger.info("lease not taken yet", extra={"lease": self._name, "why": str(error)})
                known = None
            check_cancelled()
            await asyncio.sleep(LOOK_S)

    async def keep(self) -> None:
        """Renew it, until cancelled. Raises LeaseLostError once another one holds it, or nobody does."""
        while True:
            reconnects = self._bus.reconnects
            try:
                await self._bus.through_reconnects(partial(self._write, self._revision))
            except ConflictError:
                if why := await self._why_lost():
                    raise LeaseLostError(f"{self._name}: {why}") from None
                continue
            except BusError as error:
                self._why_not_renewed = str(error)
                logger.warning("lease not renewed", extra={"lease": self._name, "why": str(error)})
            await self._bus.wait_reconnected(reconnects, RENEW_S)
            check_cancelled()

    async def renewed(self) -> None:
        """Return when all may be sent: at once, or, where the bus was away, with the next renewal of ``keep``."""
        while not self._is_renewed_within(VALID_S):
            check_cancelled()
            self._was_renewed.clear()
            await self._was_renewed.wait()

    async def release(self) -> None:
        """Let the next one have it at once. Nothing where it is not held."""
        if self._revision is not None:
            self._revision = None
            with contextlib.suppress(BusError):
                await self._bus.at_the_end(self._give_back, RELEASE_S)

    async def _give_back(self) -> None:
        while (found := await self._find()) is not None and found.value == self._own:
            with contextlib.suppress(ConflictError):  # a renewal was still under way, or another one has it by now
                await self._bucket.delete(self._name, found.revision)
                return

    def may_send(self, subject: str) -> bool:
        """For ``Bus.fence``: whether nobody else can hold it by now. Nothing is sent into a lost connection, to come
        out of it later. The lease itself, and answers, may be sent at any time."""
        if subjects.LEASES_BUCKET in subject or subject.startswith(REPLIES):
            return True
        return self._is_renewed_within(VALID_S)

    @property
    def is_answered(self) -> bool:
        """The bus has confirmed the last renewal, over the connection that there is now."""
        return self._is_renewed_within(ANSWERED_S)

    @property
    def trouble(self) -> str:
        """Why this process may have been replaced, in words; empty where it holds the lease, or waits for it."""
        is_held = self._revision is None or self._is_renewed_within(VALID_S)
        return "" if is_held or not self._why_not_renewed else f"its lease is not renewed: {self._why_not_renewed}"

    def _is_renewed_within(self, seconds: float) -> bool:
        is_fresh = self._clock.monotonic_s() - self._sent_s < seconds
        return is_fresh and self._bus.is_connected and self._bus.reconnects == self._reconnects

    async def _write(self, revision: int | None) -> None:
        """Create it, or replace this revision. Raises ConflictError where it is another by now, and BusError."""
        sent_s, reconnects = self._clock.monotonic_s(), self._bus.reconnects
        if revision is None:
            self._revision = await self._bucket.create(self._name, self._own)
        else:
            self._revision = await self._bucket.update(self._name, self._own, revision)
        self._sent_s, self._reconnects, self._why_not_renewed = sent_s, reconnects, ""
        self._was_renewed.set()

    async def _why_lost(self) -> str:
        """Empty where it is not, or that is not known: a renewal that was not confirmed may have been stored all the
        same."""
        try:
            found = await self._find()
        except BusError:
            return ""  # tried again
        if found is None or found.value is None:
            return "the bus has no holder of it any more: it has lost that, or another process held it and has ended"
        if found.value != self._own:
            return f"another process holds it now ({found.value})"
        self._revision = found.revision
        return ""

    async def _find(self) -> Entry[LeaseHolder] | None:
        """Also where it does not parse: then nobody can be asked, and it is waited for as for one that is silent."""
        return await self._bucket.find(self._name)

    async def _look(self, known: Entry[LeaseHolder] | None) -> tuple[bool | None, Entry[LeaseHolder] | None]:
        """(whether the known holder is there, what is held by now). None of the first: as ``_ask``, or none is known. A
        holder tells its revision, so that the bus need not be asked."""
        is_there, revision = (None, None) if known is None or known.value is None else await _ask(self._bus, known)
        if known is not None and revision is not None:
            return is_there, replace(known, revision=revision)
        return is_there, await self._find()

    async def _on_asked(self, _: object) -> int | None:
        """None where it does not hold it any more."""
        return self._revision
