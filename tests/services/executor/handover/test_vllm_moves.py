"""Requests that move between executors that run vLLM with two workers each, by layers or in each layer: every worker
reads its part of the KV out of its like's memory."""

import asyncio
import importlib.util
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.executor.engines.factory import load_engine
from services.executor.engines.torch.threads import cpu_count
from services.executor.handover.desk import HandoverDesk
from services.executor.handover.peers import place_of
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import EngineLostError
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.replica.engine import Engine
from shared.scheduling.request import Kind
from shared.text.tokenizer import Tokenizer
from tests.programs import stand_still
from tests.services.executor.engines.test_torch_models import save_model
from tests.services.executor.handover.rig import Client, running, until
from tests.services.executor.handover.test_desk import OOCO, gateway
from tests.services.executor.live_gateway import GATEWAY
from tests.with_vllm import NEEDS_VLLM

__all__ = ["gateway"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    NEEDS_VLLM,
    pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL is not installed"),
    pytest.mark.skipif(cpu_count() < 2, reason="two workers need two cores"),
]

NUM_BLOCKS = 80
START_S = 240.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "llama", head_dim=32, eos_token_id=None, num_hidden_layers=4)
    return path


@pytest.fixture(autouse=True)
def over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As between hosts: a worker that stands still sends nothing."""
    monkeypatch.setenv("UCX_TLS", "tcp")


def settings_of(model: Path, executor_id: str, role: str, degrees: dict[str, int]) -> ExecutorSettings:
    return ExecutorSettings(
        model_path=str(model),
        executor_id=executor_id,
        engine="vllm",
        role=role,
        strategy=OOCO,
        kv_blocks=NUM_BLOCKS,
        max_num_seqs=16,
        threads=2,
        **degrees,  # type: ignore[arg-type]
    )


Engines = dict[str, tuple[ExecutorSettings, Engine]]


@pytest.fixture
def engines(request: pytest.FixtureRequest, model: Path, over_tcp: None) -> Engines:
    """Of each role; loaded before there is a bus, whose connections would not outlive that."""
    made = {}
    for role in ("relaxed", "strict"):
        settings = settings_of(model, role, role, request.param)
        made[role] = settings, load_engine(settings)
    return made


def make_requests(name: str, max_tokens: int) -> list[GenerateRequest]:
    """Greedy, of one block and of some."""
    rng, made = random.Random(name), []
    for number in range(6):
        prompt = [rng.randrange(2, 300) for _ in range(rng.randint(5, 100))]
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        made.append(GenerateRequest(f"{name}-{number}", Kind.ONLINE, prompt, sampling, 0.0, GATEWAY))
    return made


MOVED, RUNNING, MOVING = make_requests("moved", 30), make_requests("running", 120), make_requests("moving", 30)


@pytest.fixture
async def expected(gateway: Client, nats_url: str, model: Path, tokenizer: Tokenizer) -> dict[str, list[int]]:
    """What the torch engine makes of them."""
    settings = replace(settings_of(model, "alone", "mixed", {}), engine="torch", threads=1)
    async with running(nats_url, settings, tokenizer):
        await gateway.send("alone", [*MOVED, *RUNNING, *MOVING])
        await until(lambda: len(gateway.ended) == len(MOVED) + len(RUNNING) + len(MOVING), START_S)
    outputs = {**gateway.outputs}
    for each in (gateway.outputs, gateway.ended, gateway.said_by):
        each.clear()
    return outputs


class Executor:
    """With vLLM's workers behind it."""

    def __init__(self, service: ExecutorService, life: asyncio.Task[None]) -> None:
        engine: Any = service._engine
        self.service = service
        self.life = life
        self.workers = [worker.proc for worker in engine._core.model_executor.workers]

    @property
    def desk(self) -> HandoverDesk:
        assert self.service._pool._desk is not None
        return self.service._pool._desk

    @property
    def request_ids(self) -> list[str]:
        """Of those that it has."""
        return self.service._replica.request_ids_of_gateways().get(GATEWAY, [])


@asynccontextmanager
async def living(
    nats_url: str, settings: ExecutorSettings, engine: Engine, tokenizer: Tokenizer
) -> AsyncIterator[Executor]:
    bus = await Bus.connect(nats_url, settings.executor_id)
    service = ExecutorService(bus, settings, engine, tokenizer, SystemClock())
    await service.start()

    async def live() -> None:
        try:
            await service.run()
        finally:
            await service.stop()

    executor = Executor(service, asyncio.create_task(live()))
    try:
        yield executor
    finally:
        executor.life.cancel()
        await asyncio.wait((executor.life,))
        await bus.close()


async def until_connected(relaxed: Executor, strict: Executor) -> None:
    assert relaxed.service.info.kv_link == strict.service.info.kv_link == "nixl"
    for reader, other in ((relaxed, strict), (strict, relaxed)):
        place = place_of(other.service.info)
        await until(lambda: reader.desk._link.is_connected(place), START_S)  # noqa: B023 - awaited here
    await until(lambda: relaxed.service._replica.handovers.pushes, START_S)


@pytest.mark.parametrize(
    ("engines", "victim"),
    [({"tensor_parallel": 2}, "relaxed"), ({"pipeline_depth": 2}, "strict")],
    indirect=["engines"],
    ids=["tp2", "pp2"],
)
async def test_requests_move_and_outlive_a_worker(
    engines: Engines,
    expected: dict[str, list[int]],
    gateway: Client,
    nats_url: str,
    tokenizer: Tokenizer,
    victim: str,
) -> None:
    """Moved requests have the tokens of those that never moved. Then a worker is killed in the middle of moves: its
    executor ends, and what was there, and nothing else, goes on at the other from the tokens so far, as its gateway
    has it."""
    async with AsyncExitStack() as stack:
        made: dict[str, Executor] = {}
        for role, (settings, engine) in engines.items():
            made[role] = await stack.enter_async_context(living(nats_url, settings, engine, tokenizer))
        relaxed, strict = made["relaxed"], made["strict"]
        await until_connected(relaxed, strict)

        await gateway.send("relaxed", MOVED)
        await until(lambda: len(gateway.ended) == len(MOVED), START_S)
        assert gateway.outputs == {each.request_id: expected[each.request_id] for each in MOVED}
        assert {taken.request_id for taken in gateway.taken} == {each.request_id for each in MOVED}
        assert all(said[0] == "relaxed" and said[-1] == "strict" for said in gateway.said_by.values())
        assert strict.service._replica.totals.prompt_tokens == 0
        await until(
            lambda: relaxed.service._replica.pool.num_free == strict.service._replica.pool.num_free == NUM_BLOCKS
        )

        await gateway.send("relaxed", RUNNING)
        await until(lambda: len(gateway.taken) == len(MOVED) + len(RUNNING), START_S)
        stand_still(strict.workers[1].pid)  # from here on it reads nothing
        await gateway.send("relaxed", MOVING)
        await until(lambda: strict.desk._taking.num_under_way, START_S)
        made[victim].workers[1].kill()
        if victim == "relaxed":
            os.kill(strict.workers[1].pid, signal.SIGCONT)
        with pytest.raises(EngineLostError):
            await asyncio.wait_for(asyncio.shield(made[victim].life), START_S)
        survivor = relaxed if victim == "strict" else strict
        await until(
            lambda: not (survivor.desk._giving.num_on_their_way or survivor.desk._taking.num_under_way), START_S
        )
        await survivor.service._bus.flush()
        await gateway.bus.flush()
        lost = [
            replace(each, output_token_ids=list(gateway.outputs.get(each.request_id, [])), is_resumed=True)
            for each in (*RUNNING, *MOVING)
            if each.request_id not in {*survivor.request_ids, *gateway.ended}
        ]
        assert lost, "the victim had nothing"
        await gateway.send(survivor.service.name, lost)
        await until(lambda: len(gateway.ended) == len(expected), START_S)
        assert gateway.outputs == expected
        pool = survivor.service._replica.pool
        await until(lambda: pool.num_free == NUM_BLOCKS)
        pool.check_integrity()
