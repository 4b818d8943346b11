"""The stack that status, top, drain and role ask: over its bus, or from anywhere through a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeVar

import msgspec

from services.local.commands.parameters import BusOptions, UrlOption
from services.local.commands.server import ApiClient, Json, server_url
from services.local.stack.data_dir import StackFile, bus_at, stack_on
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ApiError, StackError
from shared.protocol.executors import Heartbeat
from shared.scheduling.placement.role import Role
from shared.watch.follower import StackFollower
from shared.watch.stack_status import ProcessStatus, StackReport, ask_stack, set_draining, set_role
from shared.watch.stack_watch import StackWatch

T = TypeVar("T")


class AskedStack(Protocol):
    """Raises ApiError, BusError and StackError."""

    @property
    def heard_s(self) -> float:
        """For how long somebody has listened to what it tells."""

    async def report(self) -> StackReport:
        """How it is now."""

    async def set_draining(self, executor_id: str, draining: bool) -> Heartbeat:
        """Whether the executor takes requests from now on; what it says to that."""

    async def set_role(self, executor_id: str, role: Role) -> Heartbeat:
        """Of which pool the executor is from now on; what it says to that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedStackOptions(BusOptions):
    """Which stack a command asks, and by which way: where a URL is named, through the gateway there."""

    url: UrlOption = None

    @contextlib.asynccontextmanager
    async def opened(self, name: str, num_beats: int = 0) -> AsyncIterator[AskedStack]:
        """``name``: of who asks. ``num_beats``: heartbeats of each executor to wait for, 2 where rates are wanted.
        Raises StackError and BusError where nobody is there to be asked."""
        if self.url is not None:
            with ApiClient(server_url(self.url, self.data_dir)) as client:
                yield StackBehindGateway(client)
            return
        watch, clock = StackWatch(), SystemClock()
        _, address = stack_on(self.data_dir, self.asked)
        async with bus_at(address, name) as bus, StackFollower.following(bus, watch, clock) as follower:
            began_s = clock.monotonic_s()
            await follower.wait_for_beats(num_beats)
            yield StackOnBus(self, bus, watch, clock, began_s)


@dataclass(frozen=True, slots=True)
class StackBehindGateway:
    """An AskedStack. The gateway follows the bus all the time, so nothing has to be waited for."""

    client: ApiClient

    @property
    def heard_s(self) -> float:
        return inf

    async def report(self) -> StackReport:
        report = self._converted(await asyncio.to_thread(self.client.get, "/status"), StackReport)
        status = msgspec.structs.replace(report.status, url=self.client.url)
        return msgspec.structs.replace(report, status=status)

    async def set_draining(self, executor_id: str, draining: bool) -> Heartbeat:
        return await self._order(f"/executors/{executor_id}/{'drain' if draining else 'undrain'}")

    async def set_role(self, executor_id: str, role: Role) -> Heartbeat:
        return await self._order(f"/executors/{executor_id}/role/{role}")

    async def _order(self, path: str) -> Heartbeat:
        return self._converted(await asyncio.to_thread(self.client.post, path), Heartbeat)

    def _converted(self, answer: Json, to: type[T]) -> T:
        try:
            return msgspec.convert(answer, to, str_keys=True)
        except msgspec.ValidationError as error:
            raise ApiError(f"{self.client.url} is no Slackwater gateway of this version: {error}") from error


@dataclass(frozen=True, slots=True)
class StackOnBus:
    """An AskedStack. What its supervisor has written down is read anew for each report."""

    options: AskedStackOptions
    bus: Bus
    watch: StackWatch
    clock: SystemClock
    began_s: float

    @property
    def heard_s(self) -> float:
        return self.clock.monotonic_s() - self.began_s

    async def report(self) -> StackReport:
        report = await ask_stack(self.bus, lambda: self.watch.view(self.clock.monotonic_s()))
        stack, address = stack_on(self.options.data_dir, self.options.asked)
        own: dict[str, Any] = {"nats": address.shown}
        if stack is not None:
            own |= {"url": stack.http_url, "model": stack.model, "ready": stack.ready}
            own["processes"] = supervised(report.status.processes, stack)
        elif not report.status.processes:
            raise StackError(f"no service answers on {address.shown}")
        return msgspec.structs.replace(report, status=msgspec.structs.replace(report.status, **own))

    async def set_draining(self, executor_id: str, draining: bool) -> Heartbeat:
        return await set_draining(self.bus, executor_id, draining)

    async def set_role(self, executor_id: str, role: Role) -> Heartbeat:
        return await set_role(self.bus, executor_id, role)


def supervised(answered: list[ProcessStatus], stack: StackFile) -> list[ProcessStatus]:
    """Those of the stack in starting order, whether they have answered or not, and whoever else has."""
    answers = {(process.name, process.pid): process for process in answered}
    shown = [ProcessStatus("supervisor", stack.supervisor_pid, "ok", 0, {})]
    for name, entry in stack.processes.items():
        answer = answers.pop((name, entry.pid), None)
        health = answer.health if answer else _health_without_answer(name, entry.pid)
        shown.append(ProcessStatus(name, entry.pid, health, max(0, entry.starts - 1), answer.details if answer else {}))
    return [*shown, *answers.values()]


def _is_alive(pid: int) -> bool:
    """Whether a process has this number."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


def _health_without_answer(name: str, pid: int | None) -> str:
    if pid is None or not _is_alive(pid):
        return "not running"
    return "ok" if name == "nats-server" else "no answer"  # the bus itself: this question went through it
