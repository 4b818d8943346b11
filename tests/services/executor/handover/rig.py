"""Executors of a pool on a real bus, in one process, and a client that reads what comes of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from services.executor.engines.factory import load_engine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.handover import Taken
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import StepTokens
from shared.replica.engine import Engine
from shared.scheduling.request import Kind
from shared.text.tokenizer import Tokenizer
from tests.services.executor.live_gateway import GATEWAY, be_there


class Client:
    """Follows its requests from executor to executor. Tokens are numbered: each has to follow the one before."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.said_by: dict[str, list[str]] = {}  # by request id, which executor each message was from
        self.taken: list[Taken] = []
        self.beats: dict[str, Heartbeat] = {}

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.tokens(GATEWAY), StepTokens, self._on_tokens)
        await self.bus.subscribe(subjects.TAKEN, Taken, self._on_taken)
        await self.bus.subscribe(subjects.HEARTBEATS, Heartbeat, self._on_heartbeat)
        await be_there(self.bus)

    async def send(self, executor_id: str, requests: Iterable[GenerateRequest]) -> None:
        for request in requests:
            await self.bus.publish(subjects.inbox(executor_id), request)

    async def until_ended(self, num_requests: int) -> None:
        await until(lambda: len(self.ended) == num_requests)

    async def _on_tokens(self, message: StepTokens) -> None:
        for output in message.outputs:
            so_far = self.outputs.setdefault(output.request_id, [])
            so_far += output.token_ids
            if output.token_ids:
                assert output.num_output_tokens == len(so_far), f"{output.request_id}: a token is lost or doubled"
            self.said_by.setdefault(output.request_id, []).append(message.executor_id)
            if output.finish_reason is not None:
                assert output.request_id not in self.ended
                self.ended[output.request_id] = output.finish_reason

    async def _on_taken(self, taken: Taken) -> None:
        self.taken.append(taken)

    async def _on_heartbeat(self, heartbeat: Heartbeat) -> None:
        self.beats[heartbeat.info.executor_id] = heartbeat


@contextlib.asynccontextmanager
async def client(nats_url: str) -> AsyncIterator[Client]:
    bus = await Bus.connect(nats_url, "test")
    made = Client(bus)
    await made.listen()
    yield made
    await bus.close()


@contextlib.asynccontextmanager
async def running(
    nats_url: str, settings: ExecutorSettings, tokenizer: Tokenizer, engine: Engine | None = None
) -> AsyncIterator[ExecutorService]:
    """``engine``: in the place of the one that the settings name."""
    bus = await Bus.connect(nats_url, settings.executor_id)
    service = ExecutorService(bus, settings, engine or load_engine(settings), tokenizer, SystemClock())
    await service.start()
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await service.stop()
        await bus.close()


def sim_settings(model_folder: Path, executor_id: str, role: str, **others: object) -> ExecutorSettings:
    return ExecutorSettings(
        model_path=str(model_folder),
        executor_id=executor_id,
        engine="sim",
        role=role,
        **{"sim_time_scale": 0.2, "kv_blocks": 256, **others},  # type: ignore[arg-type]
    )


def make_request(number: int, kind: Kind = Kind.ONLINE, max_tokens: int = 60, num_tokens: int = 40) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=number, ignore_eos=True)
    prompt = [(number * 31 + position * 7) % 1000 + 100 for position in range(num_tokens)]
    return GenerateRequest(f"{kind.name.lower()}-{number}", kind, prompt, sampling, 0.0, GATEWAY)


async def until(holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if holds():
                return
            await asyncio.sleep(0.01)
