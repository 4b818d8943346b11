"""Engines that hang, and engines that are only slow: real processes, real threads."""

import asyncio
import os
import select
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from services.executor.engines.sim import SimEngine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from services.executor.watchdog import TICK_S, LaunchedStep, Watchdog
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import EngineError, EngineLostError
from shared.latency.linear import LinearLatencyModel
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, Heartbeat
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.services import ServiceStatus
from shared.protocol.tokens import StepTokens
from shared.replica.engine import StepBatch, StepResult
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.gateway.gateway_rig import GatewayRig, wait_until
from tests.services.gateway.live.test_failover import SLOW, Stream, undisturbed
from tests.services.profiler.profiling import until
from tests.simulation.loop import VirtualLoop
from tests.simulation.run import in_virtual_time

COEFFICIENTS = LinearCoefficients((1000.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))  # a second for a step
HANGING_EXECUTOR = """
import multiprocessing
import sys
import threading
import time

from services.executor.__main__ import serve
from services.executor.engines.factory import load_engine
from services.executor.settings import ExecutorSettings
from shared.process.service import configure_logging, logger
from shared.settings import config
from shared.text.tokenizer import Tokenizer
from pathlib import Path


class HangingEngine:
    def __init__(self, engine):
        self._engine = engine
        self.spec = engine.spec
        self.start_copies = engine.start_copies
        self.close = engine.close

    def execute(self, batch):
        if batch.step == 20:
            threading.Event().wait()
        return self._engine.execute(batch)


if __name__ == "__main__":
    settings = config.load(ExecutorSettings, "executor")
    configure_logging()
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,), daemon=True)
    worker.start()
    logger.info("worker", extra={"worker_pid": worker.pid})
    tokenizer = Tokenizer.from_folder(Path(settings.model_path))
    sys.exit(serve(settings, HangingEngine(load_engine(settings)), tokenizer))
"""


async def test_an_engine_that_hangs_is_reported_and_ended_and_its_streams_go_on(tmp_path: Path) -> None:
    script = tmp_path / "hanging_executor.py"
    script.write_text(HANGING_EXECUTOR)
    reports: list[str] = []
    with GatewayRig(tmp_path) as rig, ThreadPoolExecutor() as pool:
        rig.start_gateway()
        rig.start_own_executor(script, *SLOW, "--step-timeout-s", "4")
        rig.wait_ready()
        (worker_pid,) = [event["worker_pid"] for event in rig.log_events("executor-0") if event["event"] == "worker"]
        os.kill(worker_pid, signal.SIGSTOP)  # so that it does not end by itself
        worker = os.pidfd_open(worker_pid)
        bus = await Bus.connect(rig.nats_url, "test")

        async def on_heartbeat(beat: Heartbeat) -> None:
            reports.append(beat.slow_step)

        await bus.subscribe(subjects.HEARTBEATS, Heartbeat, on_heartbeat)
        stream = Stream(rig, pool, max_tokens=60)
        async with asyncio.timeout(60):
            while not any(reports):  # noqa: ASYNC110 (heartbeats come by themselves)
                await asyncio.sleep(0.05)
        statuses = await bus.gather(subjects.PING, {}, ServiceStatus, 0.5)
        (health,) = [status.health for status in statuses if status.name == "executor-0"]
        assert "step 20 has taken" in health and "the executor ends at 4 s" in health
        assert await asyncio.to_thread(rig.wait, "executor-0") == 1
        assert select.select([worker], [], [], 10)[0], "a worker is still there"
        events = [event["event"] for event in rig.log_events("executor-0")]
        assert any("step 20 has taken" in event for event in events) and "stopped by an error" in events
        rig.start_executor("executor-0", *SLOW)
        text = await asyncio.to_thread(stream.text)
        assert text == await asyncio.to_thread(undisturbed, rig, stream)
        await bus.close()
        os.close(worker)


async def test_an_executor_whose_engine_hangs_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    """Its steps have their time; nobody waits for more."""
    script = tmp_path / "hanging_executor.py"
    script.write_text(HANGING_EXECUTOR)
    with GatewayRig(tmp_path) as rig, ThreadPoolExecutor() as pool:
        rig.start_gateway()
        rig.start_own_executor(script, *SLOW, "--step-timeout-s", "3")
        rig.wait_ready()
        stream = Stream(rig, pool, max_tokens=60)
        wait_until(lambda: rig.metric("slackwater_executor_steps_total") >= 20, rig.logs)
        rig.stop("executor-0")
        assert rig.metric("slackwater_live_requests") == 1
        rig.start_executor("executor-0", *SLOW)
        assert await asyncio.to_thread(stream.text) == await asyncio.to_thread(undisturbed, rig, stream)


class HangsBehindFailure:
    """Its first step fails, and that behind it never ends."""

    def __init__(self) -> None:
        self.spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,), takes_steps_ahead=True)
        self.fails, self.hangs, self.let_go = threading.Event(), threading.Event(), threading.Event()
        self.num_steps = 0

    def execute(self, batch: StepBatch) -> StepResult:
        self.num_steps += 1
        if batch.follows is None:
            self.fails.wait(60)
            raise EngineError("bad step")
        self.hangs.set()
        self.let_go.wait()
        return StepResult({}, 1.0)

    def start_copies(self, copies: SlotOperations) -> None:
        """There are none."""


async def test_a_step_ahead_that_hangs_when_the_one_before_it_has_failed_is_noticed(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """The loop hears of the failure when the engine has begun the step ahead, which would be taken back before. The
    timeout begins to matter once that is the only one, however long this machine takes to come there."""
    settings = ExecutorSettings(
        model_path=str(model_folder), engine="sim", step_timeout_s=600.0, strategy=Strategy.of("sarathi++")
    )
    own_bus, engine = await Bus.connect(nats_url, "executor-0"), HangsBehindFailure()
    service = ExecutorService(own_bus, settings, engine, tokenizer, SystemClock())  # type: ignore[arg-type]
    await service.start()
    running = asyncio.create_task(service.run())
    request = GenerateRequest("on", Kind.ONLINE, list(range(20)), SamplingParams(20), 0.0, "gateway")
    await own_bus.publish(subjects.inbox("executor-0"), request)
    await until(lambda: service._loop._ahead is not None)
    engine.fails.set()
    assert engine.hangs.wait(60)
    watchdog = service._loop.watchdog
    await until(lambda: (oldest := watchdog._oldest()) is not None and oldest.batch.step == 1)
    watchdog._timeout_s = TICK_S
    with pytest.raises(EngineLostError, match="the engine hangs: step 1"):
        await asyncio.wait_for(running, 60)
    assert engine.num_steps == 2
    await service.stop()
    engine.let_go.set()
    await own_bus.close()


@pytest.mark.parametrize("is_predicted", [True, False])
async def test_a_slow_step_is_ended_unless_it_was_predicted(
    nats_url: str, bus: Bus, model_folder: Path, tokenizer: Tokenizer, is_predicted: bool
) -> None:
    settings = ExecutorSettings(model_path=str(model_folder), engine="sim", step_timeout_s=0.3)
    spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,))
    engine = SimEngine(spec, LinearLatencyModel(1000.0, 0, 0, 0, 0, 0, 0))
    own_bus = await Bus.connect(nats_url, "executor-0")
    service = ExecutorService(own_bus, settings, engine, tokenizer, SystemClock())
    if is_predicted:
        key = service.info.profile_key
        models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
        await models.put(key, LatencyModelRecord(key, COEFFICIENTS, 100, 0.01, 0.0))
    tokens: asyncio.Queue[StepTokens] = asyncio.Queue()
    await bus.subscribe(subjects.tokens("gateway"), StepTokens, tokens.put)
    await bus.flush()
    await service.start()
    running = asyncio.create_task(service.run())
    if is_predicted:
        async with asyncio.timeout(60):
            while not service._tuning.knows_model(service.info.profile_key):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    sampling = SamplingParams(max_tokens=1, seed=3)
    request = GenerateRequest("a", Kind.ONLINE, [5, 6, 7], sampling, 0.0, "gateway")
    await bus.publish(subjects.inbox("executor-0"), request)
    if is_predicted:
        (output,) = (await asyncio.wait_for(tokens.get(), 10)).outputs
        assert output.finish_reason is not None and not running.done()
        running.cancel()
        await asyncio.wait((running,))
    else:
        with pytest.raises(EngineLostError, match="the engine hangs: step 0 has taken"):
            await asyncio.wait_for(running, 60)
    await service.stop()
    engine.close()
    await own_bus.close()


def test_while_no_step_runs_it_looks_at_nothing_and_it_sees_each_that_begins() -> None:
    """In virtual time."""
    timeout_s = 4.0

    async def watch() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        running: list[LaunchedStep] = []
        watchdog = Watchdog(lambda: running[0] if running else None, lambda _: 1.0, timeout_s)
        watching = asyncio.create_task(watchdog.run())
        before = loop.num_turns
        await asyncio.sleep(1e6)
        num_turns, batch = loop.num_turns - before, StepBatch(1, [])
        for _ in range(2):
            running.append(LaunchedStep(batch, Future(), loop.create_future(), loop.time()))
            watchdog.step_began()
            await asyncio.sleep(timeout_s / 2)
            running.clear()
            await asyncio.sleep(1e6)
        running.append(LaunchedStep(batch, Future(), loop.create_future(), loop.time()))
        watchdog.step_began()
        since_s = loop.time()
        with pytest.raises(EngineLostError):
            await watching
        return num_turns, loop.time() - since_s

    num_turns, hung_s = in_virtual_time("1", watch)[0]
    assert num_turns < 10
    assert timeout_s <= hung_s <= timeout_s + 2 * TICK_S
