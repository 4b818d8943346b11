"""Asks processes whether they are there: the bus knows at once where nobody listens, heartbeats tell seconds later."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from shared.bus import Bus
from shared.errors import BusError, NobodyListensError, NoResponderError
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo
from shared.protocol.requests import AbortRequests, HeldRequests, WhoAsks

logger = logging.getLogger(__name__)

EXECUTOR_INTERVAL_S = 0.5
GATEWAY_INTERVAL_S = 2.0
MISSES = 2  # in a row: one that reconnects is back on the bus within moments

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True)
class Probe(Generic[T]):
    """``live`` names those that are believed to be there, ``subject_of`` where each is asked; ``on_gone`` is told of
    each that is not. ``missing``: what says so; that nobody answers in time does so only where the ``bus_answers``.
    Each is asked with ``message_of`` it; what it answers is given to ``on_answer``. While it ``is_idle`` nobody is to
    be asked, until ``look`` says that this may have changed."""

    bus: Bus
    subject_of: Callable[[T], str]
    live: Callable[[], Iterable[T]]
    on_gone: Callable[[T], None]
    interval_s: float
    missing: type[NoResponderError]
    answer_type: type[Any] = object
    message_of: Callable[[T], object] = lambda _: None
    on_answer: Callable[[Any], None] = lambda _: None
    is_idle: Callable[[], bool] = lambda: False
    bus_answers: Callable[[], bool] = lambda: True
    _news: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _misses: dict[T, int] = field(default_factory=dict, init=False)

    def look(self) -> None:
        """Somebody may have work by now."""
        self._news.set()

    async def run(self) -> None:
        """Never returns."""
        while True:
            while self.is_idle():
                self._news.clear()
                await self._news.wait()
            await asyncio.sleep(self.interval_s)
            self._misses = {each: self._misses.get(each, 0) for each in self.live()}
            if self._misses:
                await asyncio.gather(*(self._ask(each) for each in self._misses))

    async def _ask(self, each: T) -> None:
        subject = self.subject_of(each)
        try:
            answer = await self.bus.request(subject, self.message_of(each), self.answer_type, timeout_s=self.interval_s)
            self._misses[each] = 0
            self.on_answer(answer)
        except self.missing as error:
            is_missed = isinstance(error, NobodyListensError) or self.bus_answers()
            self._misses[each] = self._misses[each] + 1 if is_missed else 0
            if self._misses[each] >= MISSES:
                self.on_gone(each)
        except BusError as error:
            logger.debug("not asked", extra={"subject": subject, "why": str(error)})


def executor_probe(
    bus: Bus,
    live: Callable[[], Iterable[ExecutorInfo]],
    on_gone: Callable[[ExecutorInfo], None],
    is_idle: Callable[[], bool] = lambda: False,
    gateway_id: str = "",
) -> Probe[ExecutorInfo]:
    """``live``: those that have work of this process; others are left to their heartbeats, since nobody waits for them.
    So is one that answers late, or not at all: it may only be busy. ``is_idle``: no executor can have any.
    ``gateway_id``: of this process, where it is to be told what executors hold of it."""

    def subject_of(info: ExecutorInfo) -> str:
        return subjects.executor_alive(info.executor_id)

    how = bus, subject_of, live, on_gone, EXECUTOR_INTERVAL_S, NobodyListensError
    return Probe(*how, message_of=lambda _: WhoAsks(gateway_id), is_idle=is_idle)


def gateway_probe(
    bus: Bus,
    live: Callable[[], Iterable[str]],
    on_gone: Callable[[str], None],
    held: Callable[[str], HeldRequests],
    on_unwanted: Callable[[list[str]], None],
    bus_answers: Callable[[], bool],
) -> Probe[str]:
    """By the ids of gateways. One that does not answer in time is gone as well, where the ``bus_answers``: while it is
    silent, so is everybody. Those that are there are told what is ``held`` of theirs, and tell what of it they do not
    wait for."""

    def on_answer(unwanted: AbortRequests) -> None:
        if unwanted.request_ids:
            on_unwanted(unwanted.request_ids)

    return Probe(
        bus,
        subjects.alive,
        live,
        on_gone,
        GATEWAY_INTERVAL_S,
        NoResponderError,
        AbortRequests,
        held,
        on_answer,
        bus_answers=bus_answers,
    )
