"""Does the faults, and undoes those that do not end by themselves."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from shared.protocol import subjects
from shared.protocol.codec import encode
from shared.protocol.executors import SetDraining
from tests.checker.history import Event
from tests.simulation.faults import Fault
from tests.simulation.nats import Link
from tests.simulation.setup import MODEL

if TYPE_CHECKING:
    from tests.simulation.world import World

logger = logging.getLogger(__name__)

Undo = Callable[[], None]
RESTART_S = 0.5
SLOW_S = (0.05, 0.3, 1.5)
LOSSY_SHARE = (0.02, 0.2, 1.0)
CLOCK_JUMPS_S = (-3600.0, -30.0, -1.0, 1.0, 30.0, 3600.0)
WORK = subjects.of_model(MODEL)
DURABLE = ("$JS.", "_INBOX.", f"{subjects.PREFIX}.requests.", f"{subjects.PREFIX}.results.", "$KV.", "$O.")
BAD_MESSAGES = (
    b"",
    b"\xc1",
    b'{"json": true}',
    msgspec.msgpack.encode({"version": 99}),
    msgspec.msgpack.encode(["next", 1]),
)


class Nemesis:
    """Of one world; everything is done from plain callbacks of the loop, in nobody's context."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._begin: dict[str, Callable[[Fault], Undo | None]] = {
            "kill": self._kill,
            "term": self._terminate,
            "stop": self._stop,
            "cut": lambda fault: self._cut(fault, up=True, down=True),
            "cut-up": lambda fault: self._cut(fault, up=True, down=False),
            "cut-down": lambda fault: self._cut(fault, up=False, down=True),
            "slow": self._slow,
            "lossy": self._lossy,
            "break": self._break,
            "bus-kill": self._kill_bus,
            "bus-power": self._cut_power,
            "bus-stop": self._stop_bus,
            "disk-full": self._fill_disk,
            "clock": self._set_clock,
            "hang": self._hang,
            "drain": self._drain,
            "join": self._join,
            "wrong-version": self._send_wrong_versions,
        }
        self._numbers = dict.fromkeys(("bus", "disk"), 0)  # of the faults that hold them down

    def plan(self, faults: list[Fault]) -> None:
        """Have them done at their times."""
        loop = asyncio.get_running_loop()
        for fault in faults:
            loop.call_at(fault.at_s, self._do, fault)

    def _do(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        event = Event(fault.number, fault.kind, fault.target, loop.time())
        self._world.history.events.append(event)
        logger.warning("fault", extra={"number": fault.number, "kind": fault.kind, "target": fault.target})
        undo = self._begin[fault.kind](fault)
        if undo is None:
            event.until_s = loop.time()
            return

        def end() -> None:
            undo()
            event.until_s = loop.time()
            logger.warning("fault ended", extra={"number": fault.number, "kind": fault.kind, "target": fault.target})

        loop.call_later(fault.lasts_s, end)

    # Processes

    def _kill(self, fault: Fault) -> None:
        self._world.supervisor.kill(fault.target, "killed")

    def _terminate(self, fault: Fault) -> None:
        self._world.supervisor.terminate(fault.target, "terminated")

    def _stop(self, fault: Fault) -> Undo | None:
        process = self._world.supervisor.running(fault.target)
        if process is None:
            return None
        process.pause()
        return process.resume

    def _hang(self, fault: Fault) -> Undo | None:
        """Its engine, until the fault ends or the executor does."""
        process = self._world.supervisor.running(fault.target)
        if process is None or process.engine is None:
            return None
        engine = process.engine
        engine.hang()
        return engine.go_on

    def _set_clock(self, fault: Fault) -> Undo:
        clock = self._world.supervisor.kept[fault.target].clock
        by_s = _pick(CLOCK_JUMPS_S, fault)
        clock.jump_s += by_s

        def set_right() -> None:
            clock.jump_s -= by_s

        return set_right

    def _join(self, fault: Fault) -> Undo:
        supervisor = self._world.supervisor
        supervisor.start(fault.target)
        return lambda: supervisor.retire(fault.target, "left")

    def _drain(self, fault: Fault) -> Undo:
        self._send(subjects.drain(fault.target), encode(SetDraining(True)))
        return lambda: self._undrain(fault.target)

    def _undrain(self, name: str, tries: int = 20) -> None:
        """Said until it is likely to have been heard."""
        self._send(subjects.drain(name), encode(SetDraining(False)))
        if tries:
            asyncio.get_running_loop().call_later(3.0, self._undrain, name, tries - 1)

    # Links

    def _link(self, fault: Fault) -> Link:
        return self._world.nats.link(fault.target)

    def _cut(self, fault: Fault, up: bool, down: bool) -> Undo:
        link = self._link(fault)
        ways = [way for way, is_meant in ((link.up, up), (link.down, down)) if is_meant]
        for way in ways:
            way.cut()

        def heal() -> None:
            for way in ways:
                way.heal()

        return heal

    def _slow(self, fault: Fault) -> Undo:
        link, by_s = self._link(fault), _pick(SLOW_S, fault)
        for way in (link.up, link.down):
            way.latency_s += by_s
            way.jitter_s += by_s

        def quicken() -> None:
            for way in (link.up, link.down):
                way.latency_s -= by_s
                way.jitter_s -= by_s

        return quicken

    def _lossy(self, fault: Fault) -> Undo:
        """Core messages may be lost by what NATS promises; those of JetStream's protocol too, but theirs is asked for
        again by itself, so that they are left to the cuts."""
        link, share, rng = self._link(fault), _pick(LOSSY_SHARE, fault), random.Random(f"{fault.number}:{fault.draw}")

        def loses(subject: str) -> bool:
            return not subject.startswith(DURABLE) and rng.random() < share

        for way in (link.up, link.down):
            way.loses = loses

        def mend() -> None:
            for way in (link.up, link.down):
                way.loses = None

        return mend

    def _break(self, fault: Fault) -> None:
        for session in self._world.nats.connections(fault.target):
            session.close()

    # The bus

    def _kill_bus(self, fault: Fault) -> Undo:
        return self._bus_down(self._world.nats.kill)

    def _cut_power(self, fault: Fault) -> Undo:
        world = self._world
        since_s = world.nats.jetstream.not_synced_since_s
        if world.nats.is_running and since_s is not None:
            world.history.not_synced.append((since_s, world.now()))
        return self._bus_down(world.nats.cut_power)

    def _stop_bus(self, fault: Fault) -> Undo:
        return self._bus_down(self._world.nats.stop)

    def _bus_down(self, down: Callable[[], None]) -> Undo:
        nats = self._world.nats
        if nats.is_running:
            down()
        self._numbers["bus"] += 1

        def up() -> None:
            self._numbers["bus"] -= 1
            if not self._numbers["bus"]:
                nats.start()

        return up

    def _fill_disk(self, fault: Fault) -> Undo:
        """When there is room again the server is killed: its streams take nothing before it starts anew."""
        self._numbers["disk"] += 1
        self._world.fill_disk(True)

        def free() -> None:
            self._numbers["disk"] -= 1
            self._world.fill_disk(self._numbers["disk"] > 0)
            asyncio.get_running_loop().call_later(RESTART_S, self._kill_bus(fault))

        return free

    def _send_wrong_versions(self, fault: Fault) -> None:
        rng = random.Random(f"{fault.number}:{fault.draw}")
        executors = [name for name in self._world.supervisor.kept if name.startswith("executor")]
        of_executor = (
            subjects.inbox, subjects.step, subjects.plan, subjects.heartbeat, subjects.sample, subjects.taken,
            subjects.role, subjects.offer, subjects.cache,
        )  # fmt: skip
        targets = [subject(name) for name in executors for subject in of_executor]
        targets += [WORK.flex, WORK.flex_drop, WORK.sample, subjects.PING, subjects.PREDICT]
        for subject in targets:
            self._send(subject, rng.choice(BAD_MESSAGES))

    def _send(self, subject: str, data: bytes) -> None:
        """As of somebody whose link is whole."""
        if self._world.nats.is_running:
            self._world.nats.send_to(subject, subject, "", data, None)


def _pick(values: tuple[float, ...], fault: Fault) -> float:
    return values[int(fault.draw * len(values))]
