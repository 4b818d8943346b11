"""The executor service on a real bus, with the sim engine."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.executor import results
from services.executor import service as service_module
from services.executor.engines.factory import load_engine
from services.executor.service import ExecutorService, executor_info
from services.executor.settings import ExecutorSettings
from shared.bus import Bus, connection
from shared.clock import SystemClock
from shared.errors import ConfigError, ModelError
from shared.process.tracing import Tracing
from shared.protocol import subjects
from shared.protocol.executors import ExecutorInfo, Heartbeat
from shared.protocol.offline.requests import OfflineResult
from shared.protocol.profiling.budgets import BudgetRecord
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.profiling.measurements import REPLACED, LatencySample, MeasuredShape, MeasureShape, PrefillChunk
from shared.protocol.prompt_scores import record_bytes
from shared.protocol.requests import AbortRequests, GenerateRequest, HeldRequests, WhoAsks
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.services import LeaseHolder
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.protocol.tokens import StepTokens
from shared.replica.sequence import LiveSequence
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.step_sizes import LARGEST, USUAL, StepSizes
from shared.scheduling.strategy import Strategy
from shared.settings import config
from shared.text.tokenizer import Tokenizer
from tests.services.executor.live_gateway import GATEWAY, be_there
from tests.services.profiler.profiling import until
from tests.shared.bus.servers import running

WORK = subjects.of_model("smollm2-135m-instruct")  # by the settings' default


class Listener:
    """Everything that an executor says, in order."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[StepStarted] = asyncio.Queue()
        self.tokens: asyncio.Queue[StepTokens] = asyncio.Queue()
        self.samples: asyncio.Queue[LatencySample] = asyncio.Queue()
        self.heartbeats: asyncio.Queue[Heartbeat] = asyncio.Queue()

    async def listen(self, bus: Bus) -> None:
        await bus.subscribe(subjects.step("executor-0"), StepStarted, self.steps.put)
        await bus.subscribe(subjects.tokens(GATEWAY), StepTokens, self.tokens.put)
        await bus.subscribe(subjects.sample("executor-0"), LatencySample, self.samples.put)
        await bus.subscribe(subjects.heartbeat("executor-0"), Heartbeat, self.heartbeats.put)
        await be_there(bus)

    async def until_step(self, idle: bool) -> StepStarted:
        async with asyncio.timeout(60):
            while True:
                message = await self.steps.get()
                if message.idle == idle:
                    return message

    async def until_end(self, request_id: str) -> tuple[list[int], FinishReason]:
        """All its tokens, and why it ended."""
        token_ids: list[int] = []
        async with asyncio.timeout(60):
            while True:
                for output in (await self.tokens.get()).outputs:
                    if output.request_id != request_id:
                        continue
                    token_ids += output.token_ids
                    if output.finish_reason is not None:
                        return token_ids, output.finish_reason


@pytest.fixture
async def listener(bus: Bus) -> Listener:
    made = Listener()
    await made.listen(bus)
    return made


def make_service(bus: Bus, settings: ExecutorSettings, tokenizer: Tokenizer) -> ExecutorService:
    return ExecutorService(bus, settings, load_engine(settings), tokenizer, SystemClock())


@pytest.fixture
async def executor(
    nats_url: str, listener: Listener, model_folder: Path, tokenizer: Tokenizer, request: pytest.FixtureRequest
) -> AsyncIterator[ExecutorService]:
    """The parameter: its KV blocks."""
    kv_blocks = getattr(request, "param", 256)
    settings = ExecutorSettings(model_path=str(model_folder), engine="sim", sim_time_scale=0.2, kv_blocks=kv_blocks)
    own_bus = await Bus.connect(nats_url, "executor-0")
    service = make_service(own_bus, settings, tokenizer)
    await service.start()
    running = asyncio.create_task(service.run())
    yield service
    running.cancel()
    await asyncio.wait((running,))
    await service.stop()
    await own_bus.close()


async def test_a_bus_that_goes_away_in_its_first_moments_is_waited_for(
    tmp_path: Path,
    model_folder: Path,
    tokenizer: Tokenizer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An engine that took minutes to load is not thrown away for it."""
    caplog.set_level(logging.INFO, connection.logger.name)
    heartbeats: asyncio.Queue[Heartbeat] = asyncio.Queue()
    with running("nats-server", tmp_path / "nats") as server:
        own_bus = await Bus.connect(server.url, "executor-0")
        await own_bus.subscribe(subjects.heartbeat("executor-0"), Heartbeat, heartbeats.put)
        settings = ExecutorSettings(model_path=str(model_folder), engine="sim", kv_blocks=256)
        service = make_service(own_bus, settings, tokenizer)

        async def away_for_the_first_of(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            """Until what it asked for has failed once."""
            own_bus._js._timeout = 0.1
            server.kill()
            await until(lambda: not own_bus.is_connected)
            caplog.clear()
            task = asyncio.create_task(work)
            await until(lambda: any(each.message.startswith("tried again") for each in caplog.records))
            own_bus._js._timeout = connection.OPERATION_TIMEOUT_S
            server.start()
            return task

        await asyncio.wait_for(await away_for_the_first_of(service.start()), 20)
        serving = await away_for_the_first_of(service.run())
        heartbeat = await asyncio.wait_for(heartbeats.get(), 20)
        assert heartbeat.info == service.info and not serving.done()
        executors = await own_bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
        assert (await executors.get("executor-0")).value == service.info
        serving.cancel()
        await asyncio.wait((serving,))
        await service.stop()
        await own_bus.close()


async def test_an_executor_that_cannot_be_registered_yet_serves(
    nats_url: str, bus: Bus, listener: Listener, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """As where the bus's disk is full."""
    is_full = True
    own_bus = await Bus.connect(nats_url, "executor-0")
    own_bus.fence(lambda subject: not (is_full and f"KV.{subjects.EXECUTORS_BUCKET}." in subject))
    settings = ExecutorSettings(model_path=str(model_folder), engine="sim", sim_time_scale=0.2, kv_blocks=256)
    service = make_service(own_bus, settings, tokenizer)
    await service.start()
    serving = asyncio.create_task(service.run())
    assert (await asyncio.wait_for(listener.heartbeats.get(), 20)).info == service.info
    await bus.publish(subjects.inbox("executor-0"), make_request("a"))
    assert (await listener.until_end("a"))[1] is FinishReason.LENGTH
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    assert await executors.keys() == set()
    is_full = False
    async with asyncio.timeout(20):
        async for entry in executors.watch():
            if entry is not None and entry.value == service.info:
                break
    serving.cancel()
    await asyncio.wait((serving,))
    await service.stop()
    await own_bus.close()


def make_request(request_id: str, kind: Kind = Kind.ONLINE, max_tokens: int = 10) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, seed=3, ignore_eos=True)
    gateway_id = GATEWAY if kind is Kind.ONLINE else ""
    return GenerateRequest(request_id, kind, list(range(5, 45)), sampling, 0.0, gateway_id)


async def test_an_online_request_streams_and_is_timed(bus: Bus, listener: Listener, executor: ExecutorService) -> None:
    await bus.publish(subjects.inbox("executor-0"), make_request("a"))
    token_ids, reason = await listener.until_end("a")
    assert (len(token_ids), reason) == (10, FinishReason.LENGTH)
    sample = await asyncio.wait_for(listener.samples.get(), 5)
    assert (sample.shape.prefill_tokens, sample.shape.prefill_requests) == (40, 1)
    assert sample.latency_ms > 0 and sample.profile_key == executor.info.profile_key


async def test_a_request_that_cannot_be_taken_ends_with_an_error(
    bus: Bus, listener: Listener, executor: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes wrong, which of no message that parses is known: the failure is counted, and the next one runs."""
    admit = LiveSequence.admit

    def admit_others(request: GenerateRequest, *rest: Any) -> LiveSequence:
        if request.request_id == "odd":
            raise ValueError("an odd one")
        return admit(request, *rest)

    monkeypatch.setattr(LiveSequence, "admit", admit_others)
    await bus.publish(subjects.inbox("executor-0"), make_request("odd"))
    assert await listener.until_end("odd") == ([], FinishReason.ERROR)
    await bus.publish(subjects.inbox("executor-0"), make_request("a"))
    assert (await listener.until_end("a"))[1] is FinishReason.LENGTH
    async with asyncio.timeout(60):
        while not (await listener.heartbeats.get()).counters.messages_failed:
            pass


async def test_each_step_message_tells_the_whole_state(bus: Bus, listener: Listener, executor: ExecutorService) -> None:
    assert (await listener.until_step(idle=True)).states == []
    await bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=3))
    first = await listener.until_step(idle=False)
    assert first.source is PlanSource.IDLE
    assert first.entries == [ScheduledRequest("a", Kind.ONLINE, 40)]
    (state,) = first.states
    assert (state.num_computed_tokens, state.num_tokens, state.num_blocks, state.max_total_tokens) == (0, 40, 3, 43)
    assert first.num_free_blocks == 253
    second = await listener.until_step(idle=False)
    assert second.source is PlanSource.LOCAL and second.step == first.step + 1
    done = await listener.until_step(idle=True)
    assert [(e.request_id, e.finish_reason) for e in done.ended] == [("a", FinishReason.LENGTH)]
    assert done.num_free_blocks == 256


async def test_one_that_holds_nothing_says_so_again_when_it_is_asked(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    async def beats(count: int) -> None:
        async with asyncio.timeout(60):
            for _ in range(count):
                await listener.heartbeats.get()

    await beats(2)
    while not listener.steps.empty():
        listener.steps.get_nowait()
    await beats(3)
    assert listener.steps.empty()
    await bus.request(subjects.cache("executor-0"), {}, CacheChanges)
    assert (await listener.until_step(idle=True)).states == []


async def allow_offline_work(bus: Bus, executor: ExecutorService) -> None:
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    budgets = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord)
    key = executor.info.profile_key
    await models.put(
        key, LatencyModelRecord(key, LinearCoefficients((1.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0)), 9, 0.0, 0.0)
    )
    await budgets.put(key, BudgetRecord(key, 100.0, "fixed"))


async def test_the_first_latency_model_says_how_large_steps_are(bus: Bus, executor: ExecutorService) -> None:
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    before = (await executors.get("executor-0")).value
    assert before is not None and before.sizes == USUAL
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    key, chosen = executor.info.profile_key, StepSizes(2048, 1024)
    line = LinearCoefficients((10.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0))
    await models.put(key, LatencyModelRecord(key, line, 9, 0.0, 0.0))
    async with asyncio.timeout(60):
        async for entry in executors.watch():
            if entry is not None and entry.value is not None and entry.value.sizes == chosen:
                break
    assert entry is not None and entry.value is not None
    assert (entry.value.epoch, entry.value.largest) == (before.epoch, LARGEST)
    large = MeasureShape([PrefillChunk(1024)], [])
    measured = await bus.request(subjects.measure("executor-0"), large, MeasuredShape, timeout_s=60)
    assert measured.latencies_ms, measured.error


async def run_by_plan(bus: Bus, listener: Listener, request: GenerateRequest) -> StepStarted:
    """Plan it for the idle executor, again until it knows its budget; the step that comes of it."""
    while not listener.steps.empty():
        listener.steps.get_nowait()
    entries = [ScheduledRequest(request.request_id, Kind.OFFLINE, 40)]
    while True:
        await bus.request(subjects.cache("executor-0"), {}, CacheChanges)  # who is asked says what it holds
        idle = await listener.until_step(idle=True)
        plan = StepPlan("executor-0", idle.epoch, idle.step, entries, [request], [], 5.0)
        await bus.publish(subjects.plan("executor-0"), plan)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                return await listener.until_step(idle=False)


async def until_stored(bus: Bus, request_id: str) -> OfflineResult:
    async with asyncio.timeout(60):
        async for stored in bus.follow(subjects.RESULTS_STREAM, WORK.all_results, OfflineResult):
            if stored is not None and stored.message.request_id == request_id:
                return stored.message
    raise AssertionError("following does not end")


async def test_a_plan_brings_offline_work_and_its_result_is_durable(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    await allow_offline_work(bus, executor)
    step = await run_by_plan(bus, listener, make_request("batch_1.7", Kind.OFFLINE, max_tokens=1))
    assert step.source is PlanSource.PLAN and step.entries[0].request_id == "batch_1.7"
    assert len((await until_stored(bus, "batch_1.7")).output_token_ids) == 1


async def test_while_results_are_refused_no_more_offline_work_is_taken(
    bus: Bus, listener: Listener, executor: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "MAX_BYTES", 1)
    await allow_offline_work(bus, executor)
    await bus.store(WORK.result("batch_0.1"), OfflineResult("batch_0.1", [], FinishReason.STOP))
    config = (await bus._js.stream_info(subjects.RESULTS_STREAM)).config
    await bus._js.update_stream(dataclasses.replace(config, max_msgs=1))
    await run_by_plan(bus, listener, make_request("batch_1.7", Kind.OFFLINE, max_tokens=1))
    idle = await listener.until_step(idle=True)
    more = make_request("batch_1.8", Kind.OFFLINE, max_tokens=4000)
    entries = [ScheduledRequest(more.request_id, Kind.OFFLINE, 40)]
    plan = StepPlan("executor-0", idle.epoch, idle.step, entries, [more], [], 5.0)
    await bus.publish(subjects.plan("executor-0"), plan)
    await bus.publish(subjects.inbox("executor-0"), make_request("online"))
    await listener.until_end("online")
    assert (await listener.until_step(idle=True)).states == []
    await bus._js.update_stream(config)
    await until_stored(bus, "batch_1.7")
    assert (await run_by_plan(bus, listener, more)).entries[0].request_id == "batch_1.8"


async def test_a_plan_of_another_epoch_or_step_is_not_run(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    await bus.publish(subjects.inbox("executor-0"), make_request("before", max_tokens=2))
    await listener.until_step(idle=False)
    idle = await listener.until_step(idle=True)
    request = make_request("batch_1.1", Kind.OFFLINE)
    entries = [ScheduledRequest(request.request_id, Kind.OFFLINE, 40)]
    await bus.publish(
        subjects.plan("executor-0"), StepPlan("executor-0", "old", idle.step, entries, [request], [], 1.0)
    )
    await bus.publish(
        subjects.plan("executor-0"), StepPlan("executor-0", idle.epoch, idle.step - 1, entries, [request], [], 1.0)
    )
    await bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=2))
    await listener.until_end("a")
    assert executor.details()["steps_planned"] == 0
    heartbeat = await asyncio.wait_for(listener.heartbeats.get(), 5)
    while heartbeat.counters.finished_online == 0:
        heartbeat = await asyncio.wait_for(listener.heartbeats.get(), 5)
    assert heartbeat.counters.plans_stale == 1 and heartbeat.counters.finished_offline == 0
    assert sum(dataclasses.astuple(heartbeat.blocks)) == heartbeat.info.spec.num_blocks
    assert heartbeat.blocks.cached + heartbeat.blocks.empty == heartbeat.num_free_blocks


async def test_of_a_traced_request_whose_plan_makes_no_sense_nothing_is_kept(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    executor._spans._tracing = Tracing("http://127.0.0.1:9/v1/traces", "executor")
    idle = await listener.until_step(idle=True)
    request = replace(make_request("batch_1.1", Kind.OFFLINE), traceparent=f"00-{1:032x}-{1:016x}-01")
    plan = StepPlan("executor-0", idle.epoch, idle.step + 9, [], [request], [], 1.0)
    await bus.publish(subjects.plan("executor-0"), plan)
    await bus.publish(subjects.inbox("executor-0"), replace(make_request("a"), traceparent=request.traceparent))
    await until(lambda: executor._replica.totals.plans_stale == 1 and bool(executor._spans._traced))
    assert list(executor._spans._traced) == ["a"]
    await listener.until_end("a")
    assert executor._spans._traced == {}


async def test_heartbeats_tell_how_long_the_steps_took(bus: Bus, listener: Listener, executor: ExecutorService) -> None:
    await bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=3))
    await listener.until_end("a")
    num_steps = 0
    async with asyncio.timeout(60):
        while num_steps < 3:
            heartbeat = await listener.heartbeats.get()
            num_steps += heartbeat.step_ms.num_samples
            assert heartbeat.counters.steps >= num_steps


async def test_heartbeats_tell_what_online_requests_need(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    await bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=2000))
    async with asyncio.timeout(60):
        while not (beat := await listener.heartbeats.get()).online_work.decode_requests:
            assert beat.online_work.prefill_tokens in (0, 40)
    assert beat.online_work.decode_kv_tokens > 40 and beat.online_work.prefill_requests == 0
    assert (beat.num_held, beat.is_drained) == (1, False)


async def until_it_follows(bus: Bus, executor: ExecutorService) -> None:
    """What it opens as it begins to run is open, so that it may lose the bus for a moment."""
    budgets, key = await bus.bucket(subjects.BUDGETS_BUCKET, BudgetRecord), executor.info.profile_key
    await budgets.put(key, BudgetRecord(key, 100.0, "fixed"))
    await until(lambda: key in executor._tuning._budgets)


async def test_it_registers_again_where_the_bus_was_away(bus: Bus, executor: ExecutorService) -> None:
    """What a bus keeps that comes back may be older than the executor."""
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    before = (await executors.get("executor-0")).value
    assert before is not None
    await executors.put("executor-0", replace(before, epoch="of before"))
    await until_it_follows(bus, executor)
    executor._bus._client._transport.close()

    async def is_there() -> bool:
        return (await executors.get("executor-0")).value == before

    await until(is_there)
    assert executor._bus.reconnects == 1


async def test_where_another_one_has_its_id_by_then_it_does_not_register_again(
    bus: Bus, executor: ExecutorService
) -> None:
    leases = await bus.bucket(subjects.LEASES_BUCKET, LeaseHolder)
    executors = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await until_it_follows(bus, executor)
    holder, another = (await leases.get("executor-0")).value, replace(executor.info, epoch="another")
    assert holder is not None
    await executors.put("executor-0", another)
    await leases.put("executor-0", replace(holder, holder_id="another"))
    executor._bus._client._transport.close()
    await until(lambda: executor._is_lost)
    assert (await executors.get("executor-0")).value == another


async def test_told_to_stop_while_it_registers_again_it_stops(
    bus: Bus, executor: ExecutorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the answer comes with that, and the client of the bus swallows it."""
    begun = asyncio.Event()

    async def swallow() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

    monkeypatch.setattr(executor, "_register", swallow)
    staying = asyncio.create_task(executor._stay_registered())
    await until_it_follows(bus, executor)
    executor._bus._client._transport.close()
    async with asyncio.timeout(60):
        await begun.wait()
    staying.cancel()
    await asyncio.wait((staying,), timeout=10)
    assert staying.cancelled()


async def test_what_was_to_be_said_while_the_bus_was_away_is_not_taken_for_news(
    tmp_path: Path, model_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway would send all of its requests there, and again with the next heartbeat, which says what was lost."""
    monkeypatch.setattr(service_module, "HEARTBEAT_S", 0.02)
    heard: list[int] = []

    async def on_heartbeat(beat: Heartbeat) -> None:
        heard.append(beat.reconnects)

    with running("nats-server", tmp_path / "nats") as server:
        own_bus = await Bus.connect(server.url, "executor-0")
        settings = ExecutorSettings(model_path=str(model_folder), engine="sim", kv_blocks=256)
        service = make_service(own_bus, settings, tokenizer)
        await service.start()
        serving = asyncio.create_task(service.run())
        await own_bus.subscribe(subjects.heartbeat("executor-0"), Heartbeat, on_heartbeat)
        await until(lambda: heard)
        server.kill()
        await until(lambda: own_bus.is_away)
        heard.clear()
        await asyncio.sleep(0.2)  # of the bus being away
        server.start()
        await until(lambda: 1 in heard)
        assert 0 not in heard
        serving.cancel()
        await asyncio.wait((serving,))
        await service.stop()
        await own_bus.close()


async def test_measuring_waits_for_an_idle_engine(bus: Bus, listener: Listener, executor: ExecutorService) -> None:
    subject = subjects.measure("executor-0")
    measured = await bus.request(subject, MeasureShape([PrefillChunk(64, 16)], [100, 200], repeats=2), MeasuredShape)
    assert measured.error == "" and len(measured.latencies_ms) == 2
    assert (measured.shape.prefill_tokens, measured.shape.decode_kv_tokens) == (64, 302)
    earlier = await bus.request(subject, MeasureShape([PrefillChunk(64)], [], epoch="of before"), MeasuredShape)
    assert (earlier.latencies_ms, earlier.error) == ([], REPLACED)
    own = await bus.request(subject, MeasureShape([PrefillChunk(64)], [], epoch=executor.info.epoch), MeasuredShape)
    assert len(own.latencies_ms) == 3
    too_long = await bus.request(subject, MeasureShape([PrefillChunk(9999)], []), MeasuredShape)
    assert "not one step of this executor" in too_long.error
    await bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=200))
    await listener.until_step(idle=False)
    assert (await bus.request(subject, MeasureShape([PrefillChunk(64)], []), MeasuredShape)).error == "busy"


async def test_who_asks_during_a_measurement_hears_of_its_blocks_once_they_are_free(
    bus: Bus, listener: Listener, executor: ExecutorService
) -> None:
    """Else no plan has room for an offline request, until it says by itself what it holds."""
    shape = MeasureShape([], [500] * 8, repeats=20)
    measuring = asyncio.create_task(bus.request(subjects.measure("executor-0"), shape, MeasuredShape, timeout_s=30))
    await until(lambda: executor._loop._measuring is not None)
    await bus.request(subjects.cache("executor-0"), {}, CacheChanges)
    while (await listener.until_step(idle=True)).num_free_blocks:
        pass
    assert len((await measuring).latencies_ms) == 20
    async with asyncio.timeout(5):
        assert (await listener.steps.get()).num_free_blocks == 256


async def test_a_measurement_that_has_not_begun_when_work_comes_is_given_up(executor: ExecutorService) -> None:
    measuring = asyncio.create_task(executor._loop.measure(MeasureShape([PrefillChunk(64)], [])))
    await asyncio.sleep(0)
    executor._loop.submit(make_request("a", max_tokens=2000))
    assert (await asyncio.wait_for(measuring, 60)).error == "busy"
    assert executor._replica.has_work


@pytest.mark.parametrize("kind", Kind)
async def test_a_measurement_gives_way_to_work(
    bus: Bus, listener: Listener, executor: ExecutorService, kind: Kind
) -> None:
    subject, long = subjects.measure("executor-0"), MeasureShape([PrefillChunk(512)] * 4, [], repeats=100)
    measuring = asyncio.create_task(bus.request(subject, long, MeasuredShape, timeout_s=30))
    await until(lambda: executor._loop._measuring is not None)
    request = make_request("a", kind, max_tokens=1)
    if kind is Kind.ONLINE:
        await bus.publish(subjects.inbox("executor-0"), request)
    else:
        await allow_offline_work(bus, executor)
        await run_by_plan(bus, listener, request)
    assert (await measuring).error == "busy"
    await until(lambda: not executor._replica.has_work)
    again = await bus.request(subject, MeasureShape([PrefillChunk(64)], [], repeats=2), MeasuredShape)
    assert len(again.latencies_ms) == 2, again.error


async def test_requests_of_a_gateway_that_is_gone_stop(bus: Bus, listener: Listener, executor: ExecutorService) -> None:
    await bus.publish(subjects.inbox("executor-0"), make_request("kept", max_tokens=2000))
    gone = make_request("left", max_tokens=2000)
    await bus.publish(
        subjects.inbox("executor-0"),
        GenerateRequest("left", gone.kind, gone.prompt_token_ids, gone.sampling, 0.0, "gateway-gone"),
    )
    async with asyncio.timeout(60):
        while True:
            step = await listener.until_step(idle=False)
            if any(ended.request_id == "left" for ended in step.ended):
                break
    assert [ended.finish_reason for ended in step.ended] == [FinishReason.ABORT]
    assert [state.request_id for state in step.states] == ["kept"]


async def test_a_gateway_of_which_no_request_has_come_is_told_what_is_held(bus: Bus, executor: ExecutorService) -> None:
    """One that believes that it has work there says so: it was taken for gone, or its first request was lost."""
    told: asyncio.Queue[HeldRequests] = asyncio.Queue()

    async def alive(held: HeldRequests) -> AbortRequests:
        told.put_nowait(held)
        return AbortRequests([])

    await bus.serve(subjects.alive("gateway-new"), HeldRequests, alive)
    await bus.flush()
    for asks in (None, WhoAsks(), WhoAsks("gateway-new")):
        epoch = await bus.request(subjects.executor_alive("executor-0"), asks, str)
        assert epoch == executor.info.epoch
    async with asyncio.timeout(30):
        assert await told.get() == HeldRequests("executor-0", epoch, [])
    assert list(executor._gateways()) == ["gateway-new"]


@contextlib.asynccontextmanager
async def draining_executor(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, drain_on_stop_s: float, max_tokens: int = 200
) -> AsyncIterator[tuple[ExecutorService, asyncio.Task[None]]]:
    """And its life; it holds the request "a", and is told to stop."""
    settings = ExecutorSettings(
        model_path=str(model_folder), engine="sim", sim_time_scale=0.2, kv_blocks=256, drain_on_stop_s=drain_on_stop_s
    )
    own_bus = await Bus.connect(nats_url, "executor-0")
    service = make_service(own_bus, settings, tokenizer)
    await service.start()
    running = asyncio.create_task(service.run())
    await own_bus.publish(subjects.inbox("executor-0"), make_request("a", max_tokens=max_tokens))
    await until(lambda: service._replica.has_work)
    running.cancel()
    yield service, running
    await asyncio.wait((running,))
    await service.stop()
    await own_bus.close()


async def test_told_to_stop_it_lets_what_is_there_end(
    nats_url: str, listener: Listener, model_folder: Path, tokenizer: Tokenizer
) -> None:
    async with draining_executor(nats_url, model_folder, tokenizer, 60.0) as (_, running):
        token_ids, reason = await listener.until_end("a")
        assert (len(token_ids), reason) == (200, FinishReason.LENGTH)
        async with asyncio.timeout(30):
            await asyncio.wait((running,))
        assert running.cancelled()
    said = [listener.heartbeats.get_nowait() for _ in range(listener.heartbeats.qsize())]
    assert any(beat.draining and beat.online_running for beat in said)


async def test_what_does_not_end_in_time_is_left(
    nats_url: str, listener: Listener, model_folder: Path, tokenizer: Tokenizer
) -> None:
    async with draining_executor(nats_url, model_folder, tokenizer, 0.1) as (_, running), asyncio.timeout(30):
        await asyncio.wait((running,))
        assert running.cancelled()
    said = [listener.tokens.get_nowait() for _ in range(listener.tokens.qsize())]
    assert not any(output.finish_reason for message in said for output in message.outputs)


async def test_without_a_bus_it_waits_for_nobody(
    nats_url: str, listener: Listener, model_folder: Path, tokenizer: Tokenizer
) -> None:
    async with draining_executor(nats_url, model_folder, tokenizer, 60.0, max_tokens=4000) as (service, running):
        await service._bus.close()
        await asyncio.wait((running,))
        assert running.cancelled() and service._replica.has_work


async def test_registration_and_signing_off(nats_url: str, bus: Bus, model_folder: Path, tokenizer: Tokenizer) -> None:
    settings = ExecutorSettings(model_path=str(model_folder), engine="sim")
    own_bus = await Bus.connect(nats_url, "executor-0")
    service = make_service(own_bus, settings, tokenizer)
    await service.start()
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    entry = await bucket.get("executor-0")
    assert entry.value == service.info
    await service.stop()
    await own_bus.close()
    assert await bucket.entries() == []


@pytest.mark.parametrize(
    ("option", "given", "known"),
    [
        ("engine", "abacus", "torch, vllm, sim"),
        ("cuda graphs", "always", "auto, off"),
        ("vllm attention", "flash", "auto, vllm, slackwater"),
    ],
)
def test_what_is_unknown_lists_the_known(option: str, given: str, known: str) -> None:
    argv = ["--model-path", "m", f"--{option.replace(' ', '-')}", given]
    with pytest.raises(ConfigError, match=f"unknown {option} '{given}'; known: {known}"):
        config.load(ExecutorSettings, "executor", argv, {})


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a prepared model"):
        load_engine(ExecutorSettings(model_path=str(tmp_path), engine="sim"))


def test_the_sim_engine_is_sized_by_what_it_stands_for(model_folder: Path) -> None:
    engine = load_engine(
        ExecutorSettings(model_path=str(model_folder), engine="sim", sim_model="yi-34b", sim_device="h100")
    )
    assert (engine.spec.device, engine.spec.num_blocks) == ("1xh100-yi-34b-x1", 819)
    with pytest.raises(ConfigError, match="unknown device 'abacus'; known: a100-40g"):
        load_engine(ExecutorSettings(model_path=str(model_folder), engine="sim", sim_device="abacus"))
    with pytest.raises(ConfigError, match="share it among more GPUs"):
        load_engine(ExecutorSettings(model_path=str(model_folder), engine="sim", sim_model="yi-34b"))


def test_its_registration_tells_how_it_swaps(model_folder: Path) -> None:
    settings = ExecutorSettings(
        model_path=str(model_folder), engine="sim", strategy=Strategy.of("bros"), host_kv_slots=300
    )
    spec = load_engine(settings).spec
    info = executor_info(settings, spec)
    assert (info.strategy.kv_sharing, info.spec.num_host_slots) == ("bidirectional", 300)
    assert info.spec.swap_ms_per_slot == info.limits().swap_ms_per_slot == spec.swap_ms_per_slot > 0


@pytest.mark.parametrize("executor", [1024], indirect=True)
async def test_scores_that_are_more_than_a_message_holds_end_their_request(
    executor: ExecutorService, listener: Listener, bus: Bus
) -> None:
    """It would be computed again and again, if nobody heard of its end."""
    num_tokens = bus.max_payload // record_bytes(20)
    for request_id, length in (("small", 100), ("large", num_tokens + 1)):
        sampling = SamplingParams(max_tokens=4, ignore_eos=True, prompt_logprobs=20)
        prompt = [100 + position % 1000 for position in range(length)]
        await bus.publish(
            subjects.inbox("executor-0"), GenerateRequest(request_id, Kind.ONLINE, prompt, sampling, 0.0, GATEWAY)
        )
    token_ids, reason = await listener.until_end("small")
    assert len(token_ids) == 4 and reason is FinishReason.LENGTH
    assert await listener.until_end("large") == ([], FinishReason.ERROR)
