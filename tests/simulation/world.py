"""A whole stack in one event loop: the bus, the processes, their clients, and what is done to them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, cast

import httpx

from shared.bus import Bus
from shared.bus.connection import CLOSE_S
from shared.errors import SlackwaterError
from shared.protocol import subjects
from shared.protocol.handover import Taken
from shared.protocol.services import ServiceStatus
from tests.checker.check import violations
from tests.checker.history import History, Start
from tests.checker.violation import Violation
from tests.faults.calm import left_over
from tests.faults.load import batches, files, keys, streams
from tests.faults.load.questions import Questions
from tests.simulation.clients import Load, VirtualClients, connecting
from tests.simulation.faults import Fault
from tests.simulation.http import Network
from tests.simulation.knobs import later_s, limits_of
from tests.simulation.loop import VirtualLoop
from tests.simulation.nats import MemoryServer
from tests.simulation.nemesis import Nemesis
from tests.simulation.services import Machine
from tests.simulation.setup import Pace, Setup
from tests.simulation.supervisor import DISTURBED_S, Supervisor
from tests.simulation.takeover import START_UNIX_S
from tests.simulation.traffic import Traffic

logger = logging.getLogger(__name__)

WELL_S = 300.0  # until which all has to be well after the last fault, as a rule
LOOK_S = 2.0
BY_AN_ERROR = 1  # a process's status
STARTING_S = 15.0  # until which a gateway that was started again may not listen
CALM_STREAMS = 2  # of each kind, at each gateway
IDLE_LINES = 20  # of a batch that has all to itself
GOOD_HEALTH = ("ok", "waits: pid")  # how it begins


class World:
    """``now``: virtual seconds. Its parts have the names by which the campaign with real processes knows a stack's."""

    def __init__(
        self, seed: str, setup: Setup, pace: Pace, model_path: str, folder: Path, traffic: Traffic | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        self.seed = seed
        self.setup = setup
        self.history = History()
        self.now = loop.time
        self.network = Network()
        self.nats = MemoryServer(
            "memory://simulated",
            random.Random(f"{seed}:nats"),
            lambda: START_UNIX_S + loop.time(),
            sync_interval_s=setup.sync_interval_s,
            max_payload=8 * 1024**2,
        )
        machine = Machine(setup, self.nats, model_path, folder, self.network)
        later = later_s(setup.knobs)
        self.supervisor = Supervisor(loop, machine, self.history, DISTURBED_S + later)
        self.takers: Counter[str] = Counter()  # of requests that moved, executors
        self.limits = limits_of(setup.knobs)
        self._well_s = WELL_S + 2.0 * later
        self._pace = pace
        self._traffic = traffic
        self._nemesis = Nemesis(self)

    @property
    def shape(self) -> World:
        """As of a stack with real processes: who its executors are."""
        return self

    @property
    def gateways(self) -> list[str]:
        return [name for name in self.setup.names if name.startswith("gateway")]

    @property
    def executors(self) -> list[str]:
        return [name for name in self.setup.names if name.startswith("executor")]

    def bus(self) -> AbstractAsyncContextManager[Bus]:
        """A connection to look at things with."""
        return connecting(self.nats.url, "onlooker")()

    def fill_disk(self, is_full: bool) -> None:
        """Of the bus."""
        self.nats.jetstream.disk_is_full = is_full

    def clients(self, name: str, slowness: float = 1.0) -> VirtualClients:
        seed = f"{self.seed}:{name}"
        whose = self.network, self.gateways, self.history, self.now, seed
        return VirtualClients(*whose, slowness, self._traffic, self.limits.stream_s)

    async def begin(self) -> None:
        """Start everything; returns when all is well. Raises AssertionError where it does not come to be."""
        for name in self.setup.names:
            link = self.nats.link(name)
            for way in (link.up, link.down):
                way.latency_s, way.jitter_s = self.setup.latency_s, self.setup.jitter_s
        self.nats.start()
        for name in self.setup.names:
            self.supervisor.start(name)
        missing = await self.become_well()
        assert not missing, missing

    async def run(self, faults: Sequence[Fault], until_s: float, questions: Questions) -> list[Violation]:
        """Traffic and faults, then calm; what was broken."""
        async with self.bus() as bus:
            await bus.subscribe(subjects.TAKEN, Taken, self._count_move)
            return await self._run(faults, until_s, questions)

    async def _run(self, faults: Sequence[Fault], until_s: float, questions: Questions) -> list[Violation]:
        history = self.history
        history.calm_s = float("inf")
        load = Load(self.clients, questions, self._pace)
        load.begin(connecting(self.nats.url, "keys"))
        self._nemesis.plan(list(faults))
        await asyncio.sleep(until_s - self.now())
        missing = await self.become_well()
        history.calm_s = self.now()
        hanging = await load.end(self.limits.stream_s)
        if missing or hanging:
            history.left_over = dict.fromkeys(missing, 1) or {"clients that hang": hanging}
        else:
            await self._look(load, questions)
        return self._check()

    async def _count_move(self, taken: Taken) -> None:
        self.takers[taken.taker.executor_id] += 1

    async def become_well(self) -> list[str]:
        """Every process answers and says that it is well, and every gateway is ready; what is still missing when there
        was time for it."""
        until_s, missing = self.now() + self._well_s, ["a look"]
        while missing and self.now() < until_s:
            try:
                async with self.bus() as bus:
                    missing = await self._missing(bus)
            except (SlackwaterError, httpx.HTTPError) as error:
                missing = [f"nobody answers: {error!r}"]
            if missing:
                await asyncio.sleep(LOOK_S)
        return missing

    async def _missing(self, bus: Bus) -> list[str]:
        answers = await bus.gather(subjects.PING, {}, ServiceStatus, 1.0)
        well = {each.pid for each in answers if each.health.startswith(GOOD_HEALTH)}
        missing = []
        for name in self.setup.names:
            process = self.supervisor.running(name)
            if process is None or process.pid not in well:
                missing.append(f"{name} is not well")
        for name in self.gateways:
            async with self.clients("ready").http(name) as client:
                if (await client.get("/ready")).status_code != httpx.codes.OK:
                    missing.append(f"{name} is not ready")
        return missing

    async def _look(self, load: Load, questions: Questions) -> None:
        """At what there is when all is well."""
        clients = self.clients("look")
        at_each = [server for server in self.gateways for _ in range(CALM_STREAMS)]
        await asyncio.gather(*(streams.ask_each(clients, questions, [server]) for server in at_each))
        self.history.left_over = await left_over(cast(Any, self), clients, self.limits)
        self.history.idle_s = self.now()
        await streams.ask_each(clients, questions, self.gateways)
        await batches.submit(clients, batches.plain(questions, clients.rng, IDLE_LINES), "batch-idle")
        for server in self.gateways:
            await files.list_all(clients, server)
            await batches.list_all(clients, server)
        await files.read_everywhere(clients, load.contents)
        await asyncio.sleep(max(0.0, self.history.calm_s + self.limits.key_settles_s - self.now()))
        for key in self.history.keys:
            if key.name in load.keys:
                await keys.try_everywhere(clients, key, load.keys[key.name])

    def _check(self) -> list[Violation]:
        history = self.history
        history.over_s = self.now()
        for stream in history.streams:
            until_s = history.over_s if stream.ended_s is None else stream.ended_s
            stream.excuse = self._excuse(stream.server, stream.sent_s, until_s)
        history.unforeseen += self._loop.unseen_errors
        return violations(history, self.limits)

    def _excuse(self, server: str, from_s: float, until_s: float) -> str:
        """Why an answer of that gateway may not have come to its end in that time; empty for none."""
        starts = next(each.starts for each in self.history.processes if each.name == server)
        lived = [start for start in starts if start.at_s <= from_s]
        if not lived or was_ending(lived[-1], until_s):
            return "its gateway died"
        return "its gateway was starting" if len(lived) > 1 and was_starting(lived[-1], from_s) else ""


def was_ending(start: Start, at_s: float) -> bool:
    """A gateway was told to end, or has ended. One that ends by an error does not listen while it closes its connection
    to the bus."""
    ended_s = start.ended_s
    if ended_s is not None and start.status == BY_AN_ERROR:
        ended_s -= CLOSE_S
    return any(each is not None and each <= at_s for each in (start.told_s, ended_s))


def was_starting(start: Start, at_s: float) -> bool:
    """A gateway may not listen yet: without a bus none starts."""
    return start.started_s is None or at_s < max(start.started_s, start.at_s + STARTING_S)
