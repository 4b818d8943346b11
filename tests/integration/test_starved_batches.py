"""Offline work goes on whatever a latency budget or a latency model says, and however late plans come: real processes,
the sim engine."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import pytest

from services.executor.engines.factory import load_engine
from services.executor.service import executor_info
from services.executor.settings import ExecutorSettings
from services.local.commands.status.table import describe
from shared.bus import Bus
from shared.latency.features import BatchFeatures
from shared.protocol import subjects
from shared.protocol.executors import Heartbeat
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from tests.services.gateway.gateway_rig import MODEL, GatewayRig, model_folder, wait_until

STEP_MS = 13.0  # about what a decode takes of the simulated engine
TRUTH = (STEP_MS, 0.08, 0.0004, 0.0, 0.0, 0.1, 0.1, 0.0)
DONE_S = 60.0
Answer = TypeVar("Answer")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[GatewayRig]:
    with GatewayRig(tmp_path) as made:
        yield made


def profile_key(time_scale: float) -> str:
    settings = ExecutorSettings(model_path=str(model_folder()), engine="sim", sim_time_scale=time_scale)
    return executor_info(settings, load_engine(settings).spec).profile_key


@asynccontextmanager
async def connected(rig: GatewayRig) -> AsyncIterator[Bus]:
    bus = await Bus.connect(rig.nats_url, "test")
    try:
        await bus.ensure_streams()
        yield bus
    finally:
        await bus.close()


def on_bus(rig: GatewayRig, ask: Callable[[Bus], Awaitable[Answer]]) -> Answer:
    async def run() -> Answer:
        async with connected(rig) as bus:
            return await ask(bus)

    return asyncio.run(run())


def start(rig: GatewayRig, factor: float, budget_ms: float, time_scale: float = 1.0) -> None:
    """A stack that finds a latency model, wrong by a factor, and a budget."""
    key = profile_key(time_scale)

    async def publish(bus: Bus) -> None:
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        coefficients = LinearCoefficients(tuple(factor * each for each in TRUTH))
        await models.put(key, LatencyModelRecord(key, coefficients, 100, 0.01, 0.0))
        budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
        await budgets.put(key, BudgetRecord(key, budget_ms, "fixed"))

    on_bus(rig, publish)
    rig.start_offline_queue()
    rig.start_executor("executor-0", "--sim-time-scale", str(time_scale))
    rig.start_gateway()
    rig.wait_ready()


def predicted_ms(rig: GatewayRig) -> float:
    """Of a decode, by the model that is published now."""

    async def ask(bus: Bus) -> float:
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        (entry,) = await models.entries()
        assert entry.value is not None
        return entry.value.latency_model().predict_ms(BatchFeatures(decode_kv_tokens=100, decode_requests=1))

    return on_bus(rig, ask)


def heartbeat(rig: GatewayRig) -> Heartbeat:
    """The next one."""

    async def ask(bus: Bus) -> Heartbeat:
        beats: asyncio.Queue[Heartbeat] = asyncio.Queue()
        await bus.subscribe(subjects.heartbeat("executor-0"), Heartbeat, beats.put)
        return await asyncio.wait_for(beats.get(), 10)

    return on_bus(rig, ask)


def submit(rig: GatewayRig, num_lines: int) -> str:
    body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}
    return rig.submit_batch(body | {"seed": n} for n in range(num_lines))


def await_done(rig: GatewayRig, batch_id: str, num_lines: int) -> None:
    wait_until(lambda: rig.openai.batches.retrieve(batch_id).status == "completed", "the batch stands still", DONE_S)
    counts = rig.openai.batches.retrieve(batch_id).request_counts
    assert counts is not None and (counts.completed, counts.failed) == (num_lines, 0)


def chatting(rig: GatewayRig) -> AbstractContextManager[None]:
    """An online request is always there."""
    return rig.completing(max_tokens=100, ignore_eos=True)


def test_a_batch_alone_is_done_under_a_budget_below_any_step(rig: GatewayRig) -> None:
    start(rig, 1.0, budget_ms=2.0)
    await_done(rig, submit(rig, 5), 5)


def test_beside_online_work_a_batch_that_waits_says_so_and_ends_once_it_is_alone(rig: GatewayRig) -> None:
    start(rig, 1.0, budget_ms=2.0)
    with chatting(rig):
        batch_id = submit(rig, 5)
        wait_until(lambda: bool(heartbeat(rig).offline_waits), "no word of the wait")
        text = describe(heartbeat(rig))
        assert "the budget of 2 ms is below the cost of a step (13.2 ms)" in text
        wait_until(
            lambda: heartbeat(rig).counters.offline_tokens > 0 or heartbeat(rig).offline_running > 0, "no probe", DONE_S
        )
    await_done(rig, batch_id, 5)
    events = [event["event"] for event in rig.log_events("executor-0") if event["level"] == "warning"]
    assert [event for event in events if event.startswith("offline work waits")] != []


def test_a_batch_is_done_beside_steps_that_start_before_their_plans_come(rig: GatewayRig) -> None:
    start(rig, 0.05, 100.0, time_scale=0.05)
    with chatting(rig):
        await_done(rig, submit(rig, 400), 400)


@pytest.mark.parametrize(
    ("factor", "beside"), [(10.0, chatting), (0.1, chatting), (10.0, nullcontext)], ids=["slow", "fast", "slow-alone"]
)
def test_a_wrong_model_is_replaced_while_batches_go_on(
    rig: GatewayRig, factor: float, beside: Callable[[GatewayRig], AbstractContextManager[None]]
) -> None:
    """By one that samples support, beside online requests and without any."""
    start(rig, factor, budget_ms=40.0)
    rig.start_predictor()
    with beside(rig):

        def is_replaced() -> bool:
            await_done(rig, submit(rig, 40), 40)
            return 0.5 * STEP_MS < predicted_ms(rig) < 2 * STEP_MS

        wait_until(is_replaced, "the wrong model stays", DONE_S)
