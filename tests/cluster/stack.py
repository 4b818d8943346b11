"""A stack on three hosts of a test: each has a server of one secured NATS cluster, an executor and a gateway; the
offline-queue is on the first, its standby on the second, what there is once on the third."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec

from services.executor.prepare_model import DEFAULT_MODEL, default_cache_dir, prepare
from services.local.stack.bus_access.folder import BusFolder
from services.local.stack.data_dir import DataDir
from services.local.stack.gpu_pinning import DeviceShare
from services.local.stack.options import StackOptions
from services.local.stack.processes.keeper import Backoff, Keeper
from services.local.stack.processes.process import Command
from services.local.stack.service_commands import ModelPlace, nats_argv, service_commands
from shared.bus import Bus
from shared.bus.address import BusAddress
from shared.bus.permissions import BusRole
from shared.errors import SlackwaterError
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from tests.checker.history import Event, History
from tests.faults.stack.hosts import BUS, Hosts

HOSTS = ("a", "b", "c")
KEY = "the-key-of-the-clients-of-this-cluster"
CLIENT_PORT, ROUTE_PORT, HTTP_PORT = 4222, 6222, 8000
ON = {"offline-queue": ("a", "b"), "predictor": ("c",), "profiler": ("c",), "executor-0": HOSTS, "gateway": HOSTS}
PING = '"2s"'  # of servers, which else take half a minute to know that one of them is gone
READY_S, LOOK_S, BEATS_S = 180.0, 0.5, 2.5
SETTINGS = {"SLACKWATER_API_KEY": KEY, "SLACKWATER_REQUIRE_KEYS": "always"}


class ThreeHosts:
    """Use as an async context manager. Times are ``now()``: seconds since its beginning."""

    def __init__(self, folder: Path) -> None:
        self.history = History()
        self.ended_by_themselves: list[str] = []
        self._folder = folder
        self._access = BusFolder(folder / "bus")
        self._began_s = time.monotonic()
        self._keepers: dict[str, list[tuple[Keeper, asyncio.Task[None]]]] = {}

    async def __aenter__(self) -> ThreeHosts:
        self._exits = contextlib.AsyncExitStack()
        try:
            self._hosts = self._exits.enter_context(Hosts(*HOSTS))
            self._exits.push_async_callback(self._stop)
            self._access.ensure([self._hosts.address(host) for host in HOSTS])
            self._model = await asyncio.to_thread(prepare, DEFAULT_MODEL, default_cache_dir(), lambda line: None)
            for host in HOSTS:
                self._start(host)
            await self.become_ready()
            self.ended_by_themselves.clear()  # those that came before the servers had found each other
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    def now(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def urls(self) -> dict[str, str]:
        """Of the gateways, by their hosts."""
        return {host: f"http://{self._hosts.address(host)}:{HTTP_PORT}" for host in HOSTS}

    def address(self, role: BusRole) -> BusAddress:
        """Of all servers."""
        url = ",".join(f"tls://{self._hosts.address(host)}:{CLIENT_PORT}" for host in HOSTS)
        return self._access.address(url, role)

    @property
    def logs(self) -> Path:
        return self._folder / "logs"

    @contextlib.contextmanager
    def event(self, kind: str, target: str) -> Iterator[None]:
        """One of the history's, as long as the context lasts."""
        event = Event(len(self.history.events), kind, target, self.now())
        self.history.events.append(event)
        yield
        event.until_s = self.now()

    async def lose(self, host: str) -> None:
        """All of its processes at once, and its link."""
        self._hosts.cut(host, BUS)
        await self._kill(host)

    def bring_back(self, host: str) -> None:
        """With what its disk has."""
        self._hosts.mend(host, BUS)
        self._start(host)

    def cut_off(self, host: str) -> None:
        """Its processes go on, and reach none but each other."""
        self._hosts.cut(host, BUS)

    def mend(self, host: str) -> None:
        self._hosts.mend(host, BUS)

    async def become_ready(self) -> None:
        """Every gateway says so, and every executor takes requests. Raises AssertionError where that takes too long."""
        until_s, missing = self.now() + READY_S, ["all"]
        while missing and self.now() < until_s:
            await asyncio.sleep(LOOK_S)
            missing = [*await self._unready(), *await self._silent()]
        assert not missing, missing

    async def copies(self) -> dict[str, int]:
        """Of each stream that the bus keeps."""
        bus = await Bus.connect(self.address(BusRole.OPERATOR), "test")
        try:
            return {name: size.copies for name, size in (await bus.sizes()).items()}
        finally:
            await bus.close()

    def on_started(self, keeper: Keeper) -> None:
        """A Keeper's word."""

    def on_crashed(self, keeper: Keeper, status: int | None, delay_s: float) -> None:
        self.ended_by_themselves.append(f"{keeper.name} with {status} at {self.now():.1f} s")

    def _start(self, host: str) -> None:
        self._keepers[host] = []
        for command in self._commands(host):
            there = replace(command, argv=(*self._hosts.on(host), *command.argv))
            keeper = Keeper(there, self, Backoff(first_s=0.5, max_s=1.0))
            self._keepers[host].append((keeper, asyncio.create_task(keeper.keep(), name=keeper.name)))

    def _commands(self, host: str) -> Iterator[Command]:
        data = DataDir(self._folder)
        yield Command(f"nats-server-{host}", self._nats(host), data.log(f"nats-server-{host}"))
        options = StackOptions(model=DEFAULT_MODEL, engine="sim", host=self._hosts.address(host), port=HTTP_PORT)
        place = ModelPlace(options, self._model, [DeviceShare(0)])
        found = service_commands(data, self.address(BusRole.OPERATOR), [place])
        own = {"executor-0": ("--executor-id", f"executor-{host}"), "gateway": ("--gateway-id", f"gateway-{host}")}
        for command in found:
            if host in ON[command.name]:
                name = f"{command.name.removesuffix('-0')}-{host}"
                argv = (*command.argv, *own.get(command.name, ()))
                yield replace(command, name=name, argv=argv, log=data.log(name), environ=SETTINGS)

    def _nats(self, host: str) -> tuple[str, ...]:
        """Its servers know each other by certificates of the same kind."""
        folder, address = self._access, self._hosts.address(host)
        routes = [f"tls://{self._hosts.address(other)}:{ROUTE_PORT}" for other in HOSTS if other != host]
        files = {"cert_file": folder.server_certificate, "key_file": folder.server_key, "ca_file": folder.ca}
        tls = ", ".join(f'{name}: "{path}"' for name, path in files.items())
        cluster = f'name: three, listen: "{address}:{ROUTE_PORT}", routes: {msgspec.json.encode(routes).decode()}'
        access = f"server_name: nats-{host}\nping_interval: {PING}\nping_max: 2\n"
        access += f"cluster {{ {cluster}, tls {{ {tls}, verify: true }} }}\n"
        store = self._folder / f"nats-{host}"
        config = self._folder / f"nats-{host}.conf"
        argv = nats_argv(config, store, CLIENT_PORT, access=access + folder.server_config())
        return (*argv, "-a", address)

    async def _unready(self) -> list[str]:
        async def ready(url: str) -> bool:
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(trust_env=False, timeout=3.0) as client:
                    return (await client.get(f"{url}/ready")).is_success
            return False

        answers = await asyncio.gather(*map(ready, self.urls.values()))
        return [f"gateway-{host}" for host, is_ready in zip(HOSTS, answers, strict=True) if not is_ready]

    async def _silent(self) -> list[str]:
        beating: set[str] = set()

        async def on_beat(beat: Heartbeat) -> None:
            beating.add(beat.info.executor_id)

        try:
            bus = await Bus.connect(self.address(BusRole.OPERATOR), "test", 3.0)
        except SlackwaterError as error:
            return [str(error)]
        try:
            await bus.subscribe(subjects.HEARTBEATS, Heartbeat, on_beat)
            await asyncio.sleep(BEATS_S)
        finally:
            await bus.close()
        return [f"executor-{host}" for host in HOSTS if f"executor-{host}" not in beating]

    async def _stop(self) -> None:
        for host in list(self._keepers):
            await self._kill(host)

    async def _kill(self, host: str) -> None:
        """Its processes, at once; they are not started again."""
        ending = self._keepers.pop(host)
        for keeper, _ in ending:
            keeper.retire()
            keeper.kill()
        await asyncio.gather(*(keeping for _, keeping in ending))
