"""One snapshot a second for all who look."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from services.gateway.dashboard.history import COLUMNS, History, Row
from services.gateway.dashboard.parts import ALL, Part, Parts
from services.gateway.dashboard.questions import StackAnswers, StackQuestions
from services.gateway.dashboard.snapshot import Snapshot, snapshot_of, with_batches
from services.gateway.http.errors import Refusal
from services.gateway.http.tally import HttpTally
from services.gateway.tenants import Tenant
from shared.bus import Bus
from shared.cancellation import check_cancelled
from shared.clock import Clock
from shared.errors import BusError
from shared.protocol.profiling.budgets import BudgetRecord, SloStatus
from shared.watch.batch_counts import BatchCounts
from shared.watch.follower import StackFollower
from shared.watch.stack_watch import StackView

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
UNSEEN_PERIOD_S = 10.0  # between questions while nobody looks: for metrics, and so that a restart is noticed
MAX_VIEWERS = 256
RETRY_S = 30.0
FRESH_S = 2.0  # for so long what was answered is good enough for who comes anew

EVERYTHING = Tenant.of(None)

_encoder = msgspec.json.Encoder()


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event's data. With ``columns``, the rows are the whole history; without, those since the event before."""

    now: msgspec.Raw
    rows: list[Row]
    columns: tuple[str, ...] = ()


@dataclass(slots=True)
class _Told:
    """To those who see the same batches."""

    now: msgspec.Raw  # encoded once, for both events
    next: bytes  # for whoever has seen the one before
    whole: bytes | None = None  # for everybody else; made when the first needs it


@dataclass(slots=True)
class _Published:
    number: int
    part: Part
    snapshot: Snapshot  # with all batches
    rows: list[Row]
    told: dict[str | None, _Told] = field(default_factory=dict)  # by owner, None: to admins; made when one looks


class DashboardHub:
    """Always follows the bus and keeps a row a second; the rest is done seldom, or while somebody looks. Viewers take
    what is newest when they are ready for it, so that a slow one misses events but holds no more than one."""

    def __init__(self, bus: Bus, clock: Clock, names: Mapping[str, str], tally: HttpTally) -> None:
        """``names``: what clients call each model, by its name in the stack; ``tally``: of this gateway's own
        answers."""
        self._bus = bus
        self._clock = clock
        self._parts = Parts(names, tally)
        self._watch = self._parts.whole.watch
        self._tally = tally
        self._questions = StackQuestions(bus, clock, names)
        self.answers = StackAnswers()
        self._asked_s = float("-inf")
        self._published: dict[str, _Published] = {}  # by model; empty while nobody looks
        self._num_published = 0
        self._has_news = asyncio.Event()  # replaced each time it is set
        self._has_viewers = asyncio.Event()
        self._is_closed = False
        self.num_viewers = 0

    async def run(self) -> None:
        """Until cancelled. A bus that is away is waited for."""
        while True:
            generation = self._bus.reconnects
            try:
                async with StackFollower.following(self._bus, self._parts, self._clock), asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._record())
                    tasks.create_task(self._ask())
            except BusError as error:  # only at the beginning
                logger.warning("the dashboard does not follow the bus yet", extra={"why": str(error)})
                await self._bus.wait_reconnected(generation, timeout_s=PERIOD_S)

    def view(self, tenant: Tenant = EVERYTHING) -> StackView:
        """What has been seen of the stack, whether anybody looks or not. ``tenant``: whose batches it tells of."""
        return self._watch.view(self._clock.monotonic_s(), tenant.sees)

    @property
    def batch_counts(self) -> BatchCounts:
        """What became of batches so far."""
        return self._watch.batch_counts

    def lines_left(self) -> int:
        """Of all batches that have not ended."""
        return self._watch.lines_left()

    def live_budgets(self) -> dict[str, BudgetRecord]:
        """Of the kinds of executors that live, by profile key."""
        view = self.view()
        keys = view.profile_keys
        return {key: record for key, record in view.budgets.items() if key in keys}

    def live_slos(self) -> dict[str, SloStatus]:
        """How they are kept, as ``live_budgets``: the profiler remembers those that were there."""
        keys = self.view().profile_keys
        return {key: status for key, status in self.answers.slos.items() if key in keys}

    def close(self) -> None:
        """End every viewer's stream: a gateway that drains does not wait for them."""
        self._is_closed = True
        self._tell()

    @asynccontextmanager
    async def viewer(self) -> AsyncIterator[None]:
        """Somebody looks for as long as this lasts. Raises Refusal (503) where there are too many."""
        if self.num_viewers >= MAX_VIEWERS:
            message = f"{self.num_viewers} dashboards are open at this gateway; try again later"
            raise Refusal("viewers", message, RETRY_S)
        self.num_viewers += 1
        self._has_viewers.set()
        if not self._published and self._clock.monotonic_s() - self._asked_s < FRESH_S:
            self._publish()
        try:
            yield
        finally:
            self.num_viewers -= 1
            if not self.num_viewers:
                self._has_viewers.clear()
                self._published = {}

    def history(self, model: str = ALL) -> History:
        """Of what clients call so, or of the whole."""
        return self._parts.of(model).history

    async def next_event(self, seen: int, tenant: Tenant = EVERYTHING, model: str = ALL) -> tuple[int, bytes] | None:
        """The newest event, once it is another than number ``seen`` (0: none), and its number; of batches it tells
        what the tenant sees, of models that which clients call so, or all. None at the end."""
        part = self._parts.of(model)
        while not self._is_closed:
            published = self._published.get(part.model)
            if published is not None and published.number != seen:
                return published.number, self._event(published, seen, tenant)
            await self._has_news.wait()
        return None

    async def _record(self) -> None:
        """Once in each second, though uvloop may wake a little before its beginning."""
        due_s = 0.0
        while True:
            now_s = self._clock.monotonic_s()
            due_s = max(due_s + PERIOD_S, now_s - now_s % PERIOD_S + PERIOD_S)
            await asyncio.sleep(due_s - now_s)
            for part in self._parts:
                part.history.record(part.watch, self._clock.monotonic_s(), self._clock.unix_s())
            if self._published:
                self._publish()

    async def _ask(self) -> None:
        """Who is the first to look waits for the answers, but not for the next second."""
        while True:
            self.answers = await self._questions.ask()
            check_cancelled()
            self._asked_s = self._clock.monotonic_s()
            if not self._published and self.num_viewers:
                self._publish()
            if self.num_viewers:
                await asyncio.sleep(PERIOD_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNSEEN_PERIOD_S):
                    await self._has_viewers.wait()

    def _publish(self) -> None:
        http = self._tally.last_hour(self._clock.monotonic_s())
        self._num_published += 1
        for part in self._parts:
            snapshot = snapshot_of(part, self._parts, self.answers, http, self._clock)
            rows = part.history.since(part.num_rows_told)
            part.num_rows_told = part.history.num_recorded
            self._published[part.model] = _Published(self._num_published, part, snapshot, rows)
        self._tell()

    def _event(self, published: _Published, seen: int, tenant: Tenant) -> bytes:
        told = self._told(published, tenant)
        if published.number == seen + 1 and seen:
            return told.next
        if told.whole is None:
            told.whole = _event_bytes(_Message(told.now, published.part.history.since(0), COLUMNS))
        return told.whole

    def _told(self, published: _Published, tenant: Tenant) -> _Told:
        key, snapshot = None if tenant.is_admin else tenant.owner, published.snapshot
        if key not in published.told:
            if key is not None:
                watch = published.part.watch
                batches = watch.batches(self._clock.monotonic_s(), tenant.sees)
                snapshot = with_batches(snapshot, self._parts, batches, watch.ended(tenant.sees))
            now = msgspec.Raw(_encoder.encode(snapshot))
            published.told[key] = _Told(now, _event_bytes(_Message(now, published.rows)))
        return published.told[key]

    def _tell(self) -> None:
        self._has_news.set()
        self._has_news = asyncio.Event()


def _event_bytes(message: _Message) -> bytes:
    return b"data: " + _encoder.encode(message) + b"\n\n"
