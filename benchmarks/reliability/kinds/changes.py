"""What operators do while clients are served: keys, executors, pools, and profiles that are asked for."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.harness.local_stack import python_command, running
from benchmarks.reliability.kinds.online import Requests
from benchmarks.reliability.kinds.tally import Tally
from loadgen.client.openai_client import OpenAIClient
from loadgen.client.records import RequestRecord
from loadgen.errors import ServerError
from services.local.stack.data_dir import DataDir, bus_at
from services.local.stack.keys import Keys
from services.local.stack.processes.process import Command
from shared.cancellation import check_cancelled
from shared.errors import SlackwaterError
from shared.protocol.access.api_keys import KeyTerms
from shared.scheduling.placement.role import Role

POLL_S = 0.5
CONNECT_S, STREAM_S = 20.0, 600.0
RUNNING = ("online_running", "offline_running")


@dataclass(slots=True)
class KeyChanges:
    """A key is made, used for a stream, and revoked."""

    data_dir: DataDir
    requests: Requests
    period_s: float
    tally: Tally = field(default_factory=lambda: Tally("keys"))

    async def run(self) -> None:
        for number in count():
            await asyncio.sleep(self.period_s)
            check_cancelled()  # the bus's client may have taken a cancellation for a timeout
            try:
                await self._use_once(f"soak-{number}")
            except SlackwaterError as error:
                self.tally.fail(f"{type(error).__name__}: {error}")

    async def _use_once(self, name: str) -> None:
        stack = self.data_dir.read_stack()
        async with bus_at(stack.bus, "soak-keys", CONNECT_S) as bus:
            keys = await Keys.on(bus)
            key = await keys.create(name, KeyTerms(requests_per_minute=600))
            record = RequestRecord(time.perf_counter())
            async with OpenAIClient(stack.http_url, STREAM_S, key) as client:
                await client.stream(self.requests.stream(), record)
            self.tally.note(record)
            await keys.revoke(name)


@dataclass(slots=True)
class ExecutorChanges:
    """One more executor joins, serves for ``period_s``, half of it in the relaxed pool, is drained and ends; then there
    is none for as long."""

    data_dir: DataDir
    client: OpenAIClient
    options: dict[str, object]
    environ: dict[str, str]
    period_s: float
    tally: Tally = field(default_factory=lambda: Tally("executors"))

    async def run(self) -> None:
        for number in count():
            await asyncio.sleep(self.period_s)
            await self._visit(f"visitor-{number % 3}")

    async def _visit(self, name: str) -> None:
        bus = self.data_dir.read_stack().bus
        where = {"nats": bus.url, "nats-creds": bus.creds, "nats-ca": bus.ca}
        options = {**where, **self.options, "executor-id": name, "config": ""}
        program = ("-m", "services.executor")
        command = Command(name, python_command(program, options), self.data_dir.log(name), self.environ)
        async with running(command, lambda: True):
            await self._until(name, lambda beat: beat is not None)
            for role in (Role.RELAXED, Role.MIXED):
                await self.tally.take(self.client.post_json(f"/executors/{name}/role/{role.value}"))
                await asyncio.sleep(self.period_s / 2)
            await self.tally.take(self.client.post_json(f"/executors/{name}/drain"))
            await self._until(name, lambda beat: beat is None or not any(beat[each] for each in RUNNING))
        await self._until(name, lambda beat: beat is None)

    async def _until(self, name: str, holds: Callable[[dict[str, Any] | None], bool]) -> None:
        """Of its last heartbeat, None where it is not there."""
        is_so = False
        while not is_so:
            await asyncio.sleep(POLL_S)
            with contextlib.suppress(ServerError):
                report = await self.client.get_json("/status")
                beats = {each["info"]["executor_id"]: each for each in report["status"]["executors"]}
                is_so = holds(beats.get(name))
