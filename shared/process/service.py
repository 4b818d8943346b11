"""A service's life: connect, start, run until a signal or a fatal error, stop, drain the bus."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec
import uvloop

from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.cancellation import ending
from shared.clock import Clock, SystemClock
from shared.errors import BusError, ConfigError, SlackwaterError, first_of
from shared.process.memory import collect_seldom
from shared.protocol import subjects
from shared.protocol.services import ServiceStatus
from shared.settings.config import load

S = TypeVar("S", bound=msgspec.Struct)

logger = logging.getLogger(__name__)

START_GRACE_S = 5.0  # for a start that is under way when the process is told to end: what it has taken is let go then
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "taskName"}

Details = dict[str, float | int | str | bool | None]


class Service(Protocol):
    """What ``run_service`` drives, in this order: start, run, stop."""

    name: str

    async def start(self) -> None:
        """Subscribe and load; the service answers pings from here on."""
        return

    async def run(self) -> None:
        """The main loop; cancelled on a stop signal. Returning ends the process."""

    async def stop(self) -> None:
        """Finish what must not be lost."""
        return

    def health(self) -> str:
        """ "ok", or what is wrong."""
        return "ok"

    def details(self) -> Details:
        """Figures for ``slackwater status``."""


class JsonFormatter(logging.Formatter):
    """One event per line: time, level, logger, event and the ids that came with it."""

    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        event |= {key: value for key, value in vars(record).items() if key not in PLAIN_RECORD}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def configure_logging(level: str = "info") -> None:
    """JSON lines on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def service_main(settings_type: type[S], name: str, make: Callable[[Bus, S, Clock], Service]) -> int:
    """The whole of a service, named as its role, whose settings, ``nats`` and ``log_level`` among them, are all that it
    needs; the process's exit status, 2 where they are at fault."""
    try:
        settings: Any = load(settings_type, name)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    clock = SystemClock()
    address = BusAddress.of(settings, BusRole(name))
    return run_service(address, settings.log_level, name, lambda bus: make(bus, settings, clock))


def run_service(address: BusAddress, log_level: str, name: str, make: Callable[[Bus], Service]) -> int:
    """Run one service until SIGINT or SIGTERM; the process's exit status. Named errors end it with one log line."""
    configure_logging(log_level)
    collect_seldom()
    try:
        uvloop.run(_serve_until_signalled(address, name, make))
    except SlackwaterError as error:
        logger.error("stopped by an error", extra={"service": name, "error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


async def _serve_until_signalled(address: BusAddress, name: str, make: Callable[[Bus], Service]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in STOP_SIGNALS:
        loop.add_signal_handler(signum, stopping.set)
    await serve(address, name, make, stopping)


async def serve(address: BusAddress | str, name: str, make: Callable[[Bus], Service], stopping: asyncio.Event) -> None:
    """One service's life on a running loop, until ``stopping`` is set, also before it has started. Raises what ends it
    otherwise."""
    connecting = asyncio.ensure_future(Bus.connect(address, name))
    if not await _is_done(connecting, stopping, 0.0):
        return
    bus = connecting.result()
    try:
        service, started_s = make(bus), SystemClock().unix_s()

        async def answer_ping(_: object) -> ServiceStatus:
            of_bus = {"messages_dropped": bus.num_dropped, "messages_failed": bus.num_failed}
            details = service.details() | of_bus
            return ServiceStatus(service.name, os.getpid(), service.health(), details, started_s)

        starting = asyncio.ensure_future(service.start())
        is_done = await _is_done(starting, stopping, START_GRACE_S)
        if stopping.is_set() and not (is_done and _has_bus(starting)):
            logger.info("told to end before it had started", extra={"service": service.name})
            return
        starting.result()
        try:
            await bus.serve(subjects.PING, object, answer_ping)
            logger.info("started", extra={"service": service.name, "pid": os.getpid()})
            await _until(stopping, bus, service.run())
        finally:
            await service.stop()
            logger.info("stopped", extra={"service": service.name})
    finally:
        await bus.close()


async def _is_done(task: asyncio.Task[Any], stopping: asyncio.Event, grace_s: float) -> bool:
    """Wait for the task, or until it has been cancelled, so long after ``stopping`` was set."""
    signalled = asyncio.ensure_future(stopping.wait())
    try:
        async with ending(task):
            await asyncio.wait((task, signalled), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((task,), timeout=grace_s)
            return task.done()
    finally:
        signalled.cancel()


def _has_bus(started: asyncio.Task[None]) -> bool:
    """It is not for the bus that it failed, if it did."""
    return not isinstance(started.exception(), BusError)


async def _until(stopping: asyncio.Event, bus: Bus, running: Coroutine[None, None, None]) -> None:
    """Run until ``stopping`` is set; the main loop's own error is raised, and BusError where the bus is closed."""
    main = asyncio.ensure_future(running)
    signalled = asyncio.ensure_future(stopping.wait())
    closed = asyncio.ensure_future(bus.wait_closed())
    await asyncio.wait((main, signalled, closed), return_when=asyncio.FIRST_COMPLETED)
    is_closed = closed.done()
    for each in (signalled, closed, main):
        each.cancel()
    try:
        await main
    except asyncio.CancelledError:
        pass
    except ExceptionGroup as errors:
        named = first_of(errors, SlackwaterError)
        if named is None or errors.split(SlackwaterError)[1] is not None:  # some were not foreseen
            raise
        raise named from None
    if is_closed:
        raise BusError("the bus has ended the connection for good")
