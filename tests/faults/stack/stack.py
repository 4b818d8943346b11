"""A whole stack on this machine, each process behind a link of its own to nats-server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import DeviceShare
from services.local.stack.machine import free_port
from services.local.stack.options import StackOptions
from services.local.stack.processes.process import Command
from services.local.stack.service_commands import ModelPlace, nats_argv, service_commands
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.protocol import subjects
from shared.protocol.handover import Taken
from shared.scheduling.strategy import Strategy
from shared.text.tool_format import ToolFormat
from tests.checker.history import Event, History, Process
from tests.faults.clock import sitecustomize as clock
from tests.faults.stack.gaps import gaps_of, in_all
from tests.faults.stack.hosts import KV_BY_DATA, Hosts
from tests.faults.stack.link import Link
from tests.faults.stack.member import Member
from tests.faults.stack.shape import NATS, Shape
from tests.faults.stack.store import Disk, Folder
from tests.faults.stack.version import of_version
from tests.services.gateway.tool_models import make_model

KEY = "the-key-of-the-clients-of-this-campaign"
DRAIN_S = 5.0
LOOK_S = 2.0  # between looks at the processes' memory
FELT_S = 25.0  # for which a disturbance of the bus is felt by who starts
SEEN_S = 1.0  # by which an end may be seen later than a broken connection
LISTENS_S = 60.0  # in which one that starts begins to listen, beside much else, where it has not said when it did
AWAY_S = 115.0  # without executors, after which a stream may end with an error; a gateway waits for two minutes
TORCH: dict[str, Any] = {"threads": 1, "kv_blocks": 600}


class Stack:
    """Use as an async context manager. Times are ``now()``: seconds since its beginning."""

    def __init__(self, folder: Path, shape: Shape, rng: random.Random) -> None:
        self.shape = shape
        self.history = History()
        self.members: dict[str, Member] = {}
        self.links: dict[str, Link] = {}
        self.locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one fault at a time for each target
        self.hosts: Hosts | None = None
        self.takers: Counter[str] = Counter()  # of requests that moved, executors
        self.store = Disk(folder) if shape.has_disk else Folder(folder)
        self._folder = folder
        self._data = DataDir(folder)
        self._rng = rng
        self._nats_port = free_port()
        self._ports = {name: free_port() for name in shape.gateways}
        self._began_s = time.monotonic()

    async def __aenter__(self) -> Stack:
        self._exits = contextlib.AsyncExitStack()
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def now(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def nats_url(self) -> str:
        """Without a link between."""
        return f"nats://127.0.0.1:{self._nats_port}"

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"http://127.0.0.1:{port}" for name, port in self._ports.items()}

    @contextlib.asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A connection without a link between."""
        bus = await Bus.connect(self.nats_url, "campaign")
        try:
            yield bus
        finally:
            await bus.close()

    async def add_executor(self, name: str) -> Member:
        """One more; it is stopped, and forgotten, by whoever adds it."""
        self.links[name] = await self._linked()
        return self._add(self._service(name, "executor-0", executor_id=name))

    async def forget(self, name: str) -> None:
        """An executor that was added."""
        self.history.unforeseen += self.members.pop(name).take_tracebacks()
        await self.links.pop(name).close()

    def upgraded(self, name: str) -> Command:
        """What a service of this version runs."""
        return self._command(name)

    def begin(self, kind: str, target: str, number: int) -> Event:
        event = Event(number, kind, target, self.now())
        self.history.events.append(event)
        return event

    def excuse(self, server: str, from_s: float, to_s: float, was_connected: bool) -> str:
        """Why an answer of this gateway may have broken off: it was not there, or nobody could give it."""
        gaps = gaps_of(self.members[server].record, 0.0 if was_connected else LISTENS_S)
        if any(gap_from_s - SEEN_S <= to_s and from_s <= gap_to_s for gap_from_s, gap_to_s in gaps):
            return f"{server} ended"
        executors = [process for process in self.history.processes if process.name.startswith("executor")]
        nobody = in_all([gaps_of(process, LISTENS_S) for process in executors])
        away_s = max((min(to_s, until_s) - max(from_s, since_s) for since_s, until_s in nobody), default=0.0)
        return "no executor lived" if away_s >= AWAY_S else ""

    async def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "clocks").mkdir()
        await asyncio.to_thread(self.store.open)
        self._exits.callback(self.store.close)
        if self.shape.has_hosts:
            self.hosts = self._exits.enter_context(Hosts(*self.shape.executors))
        self._exits.push_async_callback(self._unlink)
        self._exits.push_async_callback(self._stop)
        self._model = await asyncio.to_thread(self._make_model)
        argv = nats_argv(self._folder / "nats.conf", self.store.path, self._nats_port)
        self._add(Command(NATS, argv, self._data.log(NATS))).start()
        for name in self.shape.services:
            self.links[name] = await self._linked()
        for name in self.shape.services:
            self._add(self._first_command(name)).start()
        for task in (self._look(), self._count_moves()):
            self._exits.callback(asyncio.create_task(task).cancel)

    def _make_model(self) -> Path:
        """Whose template takes tools, where no weights are needed."""
        folder = prepare(DEFAULT_MODEL, default_cache_dir(), lambda line: None)
        if self.shape.engine != "sim":
            return folder
        own = self._folder / "model"
        own.mkdir()
        shutil.copy(folder / "config.json", own)
        return make_model(folder, ToolFormat.HERMES, own)

    def _first_command(self, name: str) -> Command:
        command = self._command(name)
        return command if self.shape.before is None else of_version(command, self.shape.before)

    def _command(self, name: str) -> Command:
        kind = name.rpartition("-")[0] if name[-1].isdigit() else name
        if kind == "executor":
            command = self._service(name, name)
            return command if self.hosts is None else self._on_host(command, self.hosts)
        if kind == "gateway":
            return self._service(name, "gateway", port=self._ports[name], gateway_id=name)
        return self._service(name, kind)

    def _on_host(self, command: Command, hosts: Hosts) -> Command:
        """The executor's own, where its KV is read over the network of data alone."""
        environ = {**command.environ, **KV_BY_DATA}
        return replace(command, argv=(*hosts.on(command.name), *command.argv), environ=environ)

    def _service(self, name: str, like: str, **own: object) -> Command:
        """As ``slackwater up`` starts it, with the process's own link, clock and settings."""
        shape, torch = self.shape, TORCH if self.shape.engine == "torch" else {}
        strategy = Strategy.of(preset="ooco") if shape.num_strict else Strategy()
        options = StackOptions(
            model=DEFAULT_MODEL,
            engine=shape.engine,
            executors=shape.num_executors,
            strict=shape.num_strict,
            drain_s=DRAIN_S,
            strategy=strategy,
            **torch,
        )
        shares = [DeviceShare(options.threads)] * shape.num_executors
        place = ModelPlace(options, self._model, shares)
        found = service_commands(self._data, BusAddress(self.links[name].url), [place])
        command = next(each for each in found if each.name == like)
        flags = [word for key, value in own.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        environ = {
            "SLACKWATER_API_KEY": KEY,
            "SLACKWATER_REQUIRE_KEYS": "always",
            "SLACKWATER_CACHE": str(self._folder / "cache"),
            "SLACKWATER_DTYPE": "float32" if torch else "auto",
            "PYTHONPATH": os.pathsep.join((str(Path(clock.__file__).parent), os.environ.get("PYTHONPATH", ""))),
            clock.VARIABLE: str(self._clock(name)),
        }
        return Command(name, (*command.argv, *flags), self._data.log(name), environ, command.grace_s)

    def _add(self, command: Command) -> Member:
        record = Process(command.name)
        self.history.processes.append(record)
        self.members[command.name] = Member(command, record, self.now, self._clock(command.name))
        self.members[command.name].is_disturbed = lambda: self._disturbance(command.name)
        return self.members[command.name]

    def _clock(self, name: str) -> Path:
        return self._folder / "clocks" / name

    def _disturbance(self, name: str) -> str:
        """What may keep a process from the bus now, or did so a moment ago."""
        now_s = self.now()
        for event in self.history.events:
            if event.concerns(name) and event.overlaps(now_s, now_s, FELT_S):
                return f"{event.kind} of {event.target}"
        return ""

    async def _look(self) -> None:
        while True:
            for member in self.members.values():
                member.look()
            await asyncio.sleep(LOOK_S)

    async def _linked(self) -> Link:
        link = Link(self._nats_port, self._rng, self.hosts.own_address() if self.hosts else "127.0.0.1")
        await link.open()
        return link

    async def _unlink(self) -> None:
        for link in self.links.values():
            await link.close()

    async def _count_moves(self) -> None:
        async def on_taken(taken: Taken) -> None:
            self.takers[taken.taker.executor_id] += 1

        async with self.bus() as bus:
            await bus.subscribe(subjects.TAKEN, Taken, on_taken)
            await asyncio.Event().wait()

    async def _stop(self) -> None:
        """At once, and nats-server last."""
        for member in reversed(self.members.values()):
            await member.take_away("the end")
