"""Several steps in flight: replica, scheduler and sim engine in lockstep, then the service on a real bus."""

import asyncio
import random
import threading
from collections import deque
from functools import cache
from pathlib import Path

import pytest

from services.executor.engines.factory import load_engine
from services.executor.engines.sim import SimEngine
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import ConfigError, EngineError, EngineLostError
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.offline_queue.offline_pool import OfflinePool
from shared.offline_queue.scheduler import Scheduler
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorInfo
from shared.protocol.offline.requests import OfflineRequest, OfflineResult
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import EndedRequest, PlanSource, StepPlan, StepStarted
from shared.protocol.tokens import StepTokens
from shared.replica.engine import Engine, StepBatch, StepResult
from shared.replica.outputs import ended_request
from shared.replica.replica import Replica
from shared.scheduling.limits import Limits
from shared.scheduling.orders.offline.fair_share import FairShare
from shared.scheduling.orders.offline.fcfs import FcfsOrder
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.simulation.stages import Stages
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.slot_engine import SlotEngine
from tests.services.executor.handover.rig import until
from tests.services.executor.live_gateway import GATEWAY, be_there
from tests.services.profiler.profiling import running
from tests.shared.replica.factories import KV_STRATEGIES, make_info
from tests.unseen import no_error_unseen

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
NUM_REQUESTS = 24  # of either kind

Outputs = dict[str, list[int]]


def make_online(number: int, prompt: int, max_tokens: int, temperature: float = 1.0) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=number)
    client = f"client-{number % 3}"
    prompt_token_ids = list(range(200 * number, 200 * number + prompt))
    return GenerateRequest(f"on-{number}", Kind.ONLINE, prompt_token_ids, sampling, 0.0, GATEWAY, client_id=client)


def make_offline(
    batch: str,
    number: int,
    prompt: int = 30,
    max_tokens: int = 10,
    ignore_eos: bool = False,
    temperature: float = 1.0,
) -> OfflineRequest:
    sampling = SamplingParams(max_tokens, temperature, seed=1000 + number, ignore_eos=ignore_eos)
    start = 10_000 + 200 * number
    prompt_token_ids = list(range(start, start + prompt))
    generate = GenerateRequest(f"{batch}.{number}", Kind.OFFLINE, prompt_token_ids, sampling, 0.0)
    return OfflineRequest(generate, batch, number, f"custom-{number}", "m")


class Peer:
    """An executor's loop with ``depth`` steps in flight, and a scheduler that hears everything at once."""

    def __init__(self, tokenizer: Tokenizer, depth: int, policy: Policy, kv: str = "lru", fail: float = 0.0) -> None:
        spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,), depth, num_host_slots=300)
        self.policy = policy
        self.depth = depth
        strategy = Strategy.of("hygen", online_order="vtc", **KV_STRATEGIES[kv])
        self.replica = Replica(Limits(16, 48, 64, 6), spec, tokenizer, strategy)
        self.engine = SlotEngine(spec, fail=fail)
        self.failed: set[str] = set()
        self.num_failed_steps = 0
        self.pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)
        info = make_info(strategy, 6, pipeline_depth=depth)
        self.scheduler = Scheduler(info, self.pool, self.tuning, SystemClock())
        self.plans: dict[int, StepPlan] = {}
        self.in_flight: deque[StepBatch] = deque()
        self.max_in_flight = 0
        self.step = 0
        self.sources: list[PlanSource] = []
        self.ended: list[EndedRequest] = []
        self.outputs: Outputs = {}

    def tuning(self) -> tuple[Policy, LatencyModel]:
        return self.policy, MODEL

    def arrive(self, request: GenerateRequest) -> None:
        self.replica.submit(request)
        self.scheduler.on_inbox(request)

    def launch(self, loses_plans: bool = False) -> bool:
        if len(self.in_flight) == self.depth:
            return False
        plan = None if loses_plans else self.plans.get(self.step)
        source = PlanSource.LOCAL if plan is None else PlanSource.PLAN
        batch = self.replica.begin(self.replica.schedule(plan, self.policy, MODEL), self.step)
        if plan is not None and not batch.sequences:
            source = PlanSource.LOCAL
            batch = self.replica.begin(self.replica.schedule(None, self.policy, MODEL), self.step)
        if not batch.sequences:
            return False
        in_flight = [sequence.request_id for step in (*self.in_flight, batch) for sequence in step.sequences]
        assert len(set(in_flight)) == len(in_flight), "in two steps at once"
        self.in_flight.append(batch)
        self.max_in_flight = max(self.max_in_flight, len(self.in_flight))
        self.sources.append(source)
        self.say(source, idle=False)
        self.step += 1
        return True

    def finish(self) -> None:
        try:
            self.replica.finish(self.engine.execute(self.in_flight.popleft()))
        except EngineError as error:
            self.replica.fail(str(error))
            self.num_failed_steps += 1
        for ended in self.replica.take_ended():
            self.ended.append(ended_request(ended))
            sequence = ended.sequence
            if ended.finish_reason is FinishReason.ERROR:
                self.failed.add(sequence.request_id)
            if ended.finish_reason is not FinishReason.ABORT:
                assert sequence.request_id not in self.outputs, "ran twice"
                self.outputs[sequence.request_id] = sequence.output_token_ids
        self.replica.pool.check_integrity()
        self.replica.table.check_integrity()
        self.pool.check_integrity()

    def say(self, source: PlanSource, idle: bool) -> int:
        """The number of plans that it brings."""
        *before, entries = self.replica.in_flight() or [[]]
        ended, self.ended = self.ended, []
        states, free = self.replica.tell(), self.replica.pool.num_free
        counters = self.replica.table.online_order.counters()
        abort = self.scheduler.on_step(
            StepStarted(
                "executor-0", "epoch-1", self.step, source, idle, entries, states, ended, free, counters, before
            )
        )
        assert abort is None
        plans = self.scheduler.plan()
        for plan in plans:
            assert self.step < plan.step + idle <= self.step + self.depth
            self.plans[plan.step] = plan
        return len(plans)

    def drain(self) -> None:
        """Launch what can be, else end the oldest step, until nothing is left anywhere."""
        while True:
            if self.launch():
                continue
            if self.in_flight:
                self.finish()
                continue
            if not self.say(PlanSource.IDLE, idle=True):
                return


def alone(tokenizer: Tokenizer, requests: list[GenerateRequest]) -> Outputs:
    """With one step in flight and no scheduler, one request after the other."""
    spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,))
    replica, engine = Replica(Limits(16, 48, 64, 6), spec, tokenizer), SlotEngine(spec)
    for request in requests:
        replica.submit(request)
        while replica.has_work:
            replica.finish(engine.execute(replica.begin(replica.schedule(None, Policy(), MODEL), 0)))
    return {ended.sequence.request_id: ended.sequence.output_token_ids for ended in replica.take_ended()}


def make_some(seed: int) -> tuple[list[GenerateRequest], list[OfflineRequest]]:
    """Online and offline ones, of all lengths."""
    rng = random.Random(seed)
    offline = [make_offline("batch_1", n, rng.randint(1, 120), rng.randint(1, 40)) for n in range(NUM_REQUESTS)]
    return [make_online(n, rng.randint(1, 150), rng.randint(1, 30)) for n in range(NUM_REQUESTS)], offline


@cache
def some_alone(tokenizer: Tokenizer, seed: int) -> Outputs:
    online, offline = make_some(seed)
    return alone(tokenizer, [*online, *(request.request for request in offline)])


@pytest.mark.parametrize("kv", KV_STRATEGIES)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_outputs_are_those_of_one_step_at_a_time(tokenizer: Tokenizer, depth: int, kv: str) -> None:
    """Whatever arrives when, with lost plans, few blocks and preemption; nothing is lost or runs twice."""
    num_preempted = num_paused = num_restored_slots = 0
    for seed in range(4):
        rng = random.Random(seed)
        peer = Peer(tokenizer, depth, Policy(rng.choice([12.0, 40.0, 1e9]), growth_room=0.0), kv)
        online, offline = make_some(seed)
        peer.pool.add(offline)
        for request in online:
            for _ in range(rng.randint(0, 6)):
                if not peer.launch(loses_plans=rng.random() < 0.1) or rng.random() < 0.5:
                    peer.finish() if peer.in_flight else peer.say(PlanSource.IDLE, idle=True)
            peer.arrive(request)
            peer.pool.discard([key for key in peer.outputs if rng.random() < 0.3])
        peer.drain()
        assert peer.max_in_flight == depth
        assert peer.replica.pool.num_free == 48
        assert peer.outputs == some_alone(tokenizer, seed)
        totals = peer.replica.totals
        num_preempted += totals.preemptions
        num_paused, num_restored_slots = num_paused + totals.pauses, num_restored_slots + totals.restored_slots
    shares_blocks = KV_STRATEGIES[kv].get("kv_sharing") == "bidirectional"
    assert num_paused and num_restored_slots if shares_blocks else num_preempted


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_what_a_failed_step_was_to_copy_is_in_no_output(tokenizer: Tokenizer, depth: int, seed: int) -> None:
    """Not even where a step behind it, launched already, copies it on."""
    rng = random.Random(seed)
    peer = Peer(tokenizer, depth, Policy(), "bidirectional", fail=0.04)
    online, offline = make_some(seed)
    peer.pool.add(offline)
    for request in online:
        for _ in range(rng.randint(0, 6)):
            if not peer.launch() or rng.random() < 0.5:
                peer.finish() if peer.in_flight else peer.say(PlanSource.IDLE, idle=True)
        peer.arrive(request)
    peer.drain()
    undisturbed = some_alone(tokenizer, seed)
    assert peer.replica.totals.restored_slots > 0 and len(peer.failed) < peer.num_failed_steps
    assert {key: output for key, output in peer.outputs.items() if key not in peer.failed} == {
        key: output for key, output in undisturbed.items() if key not in peer.failed
    }
    assert peer.replica.pool.num_free == 48


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_every_step_has_its_plan(tokenizer: Tokenizer, depth: int) -> None:
    peer = Peer(tokenizer, depth, Policy(1e9))
    peer.pool.add([make_offline("batch_1", n, 20 + n, 5 + n % 7, ignore_eos=True) for n in range(60)])
    peer.drain()
    assert len(peer.outputs) == 60 and peer.max_in_flight == depth
    assert set(peer.sources) == {PlanSource.PLAN}


def test_an_abort_of_a_request_in_flight_waits_for_its_step(tokenizer: Tokenizer) -> None:
    peer = Peer(tokenizer, 2, Policy())
    peer.arrive(make_online(1, 64, 9))
    peer.launch()
    peer.arrive(make_online(2, 64, 9))
    peer.launch()
    peer.replica.abort(["on-1", "on-2"])
    assert [len(step) for step in peer.replica.in_flight()] == [1, 1]
    peer.finish()
    assert [request.request_id for request in peer.replica.table] == ["on-2"]
    peer.finish()
    assert not peer.replica.has_work and peer.replica.pool.num_free == 48


def test_a_failed_step_leaves_the_others_alone(tokenizer: Tokenizer) -> None:
    peer = Peer(tokenizer, 2, Policy())
    requests = [make_online(n, 64, 9) for n in (1, 2)]
    for request in requests:
        peer.arrive(request)
        peer.launch()
    peer.in_flight.popleft()
    peer.replica.fail("bad step")
    peer.drain()
    assert peer.outputs == alone(tokenizer, requests)


def test_a_step_enters_each_stage_when_the_one_before_has_left_it() -> None:
    stages = Stages(4)
    leaves = [stages.leave(start, duration) for start, duration in ((10.0, 4.0), (10.0, 4.0), (10.5, 8.0), (30.0, 4.0))]
    assert leaves == [14.0, 15.0, 20.0, 34.0]


def test_the_torch_engine_has_one_stage(model_folder: Path) -> None:
    with pytest.raises(ConfigError, match="torch engine does not share a model: leave pipeline_depth"):
        load_engine(ExecutorSettings(model_path=str(model_folder), pipeline_depth=2))


class Site:
    """An executor service and a scheduler for it, each with its own bus connection, until all requests have ended."""

    def __init__(
        self,
        depth: int,
        num_offline: int,
        online: list[GenerateRequest],
        kv: str = "lru",
        kv_blocks: int = 256,
        late: list[GenerateRequest] | None = None,
        engine: Engine | None = None,
    ) -> None:
        """``late``: online requests that come when offline ones run. ``engine``: None is one that simulates; with
        another, offline requests are greedy, as their logits depend a little on the batch."""
        self.engine = engine
        self.depth = depth
        self.kv = kv
        self.kv_blocks = kv_blocks
        self.late = late or []
        self.batch = f"batch_{depth}_{kv}_{kv_blocks}_{engine.spec.engine if engine else 'sim'}"
        self.online = online
        self.outputs: Outputs = {}
        self.steps: list[StepStarted] = []
        self._num_expected = len(online) + len(self.late) + num_offline
        self._all_ended = asyncio.Event()
        self._pool = OfflinePool(FairShare(FcfsOrder()), lambda: None, lambda _, __: None)
        temperature = 1.0 if engine is None else 0.0
        self._pool.add([make_offline(self.batch, n, 40, 12, temperature=temperature) for n in range(num_offline)])

    async def run(self, nats_url: str, model_folder: Path, tokenizer: Tokenizer) -> ExecutorService:
        settings = ExecutorSettings(
            model_path=str(model_folder),
            engine="sim",
            sim_time_scale=0.2,
            kv_blocks=self.kv_blocks,
            strategy=Strategy.of("sarathi++", **KV_STRATEGIES[self.kv]),
            max_num_seqs=4,
            pipeline_depth=self.depth,
        )
        bus, peer_bus = await Bus.connect(nats_url, "executor-0"), await Bus.connect(nats_url, "test")
        engine = self.engine or load_engine(settings)
        executor = ExecutorService(bus, settings, engine, tokenizer, SystemClock())
        await self._listen(peer_bus, executor.info)
        async with running(executor):
            following = asyncio.create_task(self._follow_results(peer_bus, executor.info.spec.model))
            for request in self.online:
                await peer_bus.publish(subjects.inbox("executor-0"), request)
            await asyncio.wait_for(self._all_ended.wait(), 120)
            following.cancel()
        await bus.close()
        await peer_bus.close()
        return executor

    async def _listen(self, bus: Bus, info: ExecutorInfo) -> None:
        scheduler = Scheduler(info, self._pool, lambda: (Policy(), NO_TIME), SystemClock())

        async def on_step(message: StepStarted) -> None:
            self.steps.append(message)
            if sum(state.kind is Kind.OFFLINE and state.num_blocks > 0 for state in message.states) > 2:
                while self.late:
                    await bus.publish(subjects.inbox("executor-0"), self.late.pop())
            scheduler.on_step(message)
            for plan in scheduler.plan():
                await bus.publish(subjects.plan("executor-0"), plan)

        async def on_tokens(message: StepTokens) -> None:
            for output in message.outputs:
                self._gain(output.request_id, output.token_ids, output.finish_reason is not None)

        await bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
        await bus.subscribe(subjects.tokens(GATEWAY), StepTokens, on_tokens)
        await be_there(bus)

    async def _follow_results(self, bus: Bus, model: str) -> None:
        async for stored in bus.follow(subjects.RESULTS_STREAM, subjects.of_model(model).all_results, OfflineResult):
            if stored is not None and stored.message.request_id.startswith(f"{self.batch}."):
                number = stored.message.request_id.partition(".")[2]
                self._gain(f"off-{number}", stored.message.output_token_ids, ended=True)

    def _gain(self, name: str, token_ids: list[int], ended: bool) -> None:
        self.outputs.setdefault(name, []).extend(token_ids)
        self._num_expected -= ended
        if not self._num_expected:
            self._all_ended.set()


async def test_the_service_keeps_as_many_steps_in_flight(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    outputs = {}
    for depth in (1, 2, 4):
        site = Site(depth, 24, [make_online(n, 40, 12) for n in range(12)])
        executor = await site.run(nats_url, model_folder, tokenizer)
        outputs[depth] = site.outputs
        details = executor.details()
        assert (executor.info.spec.pipeline_depth, details["engine"]) == (depth, "sim")
        assert isinstance(details["steps_planned"], int) and details["steps_planned"] > 0
        assert max(len(step.in_flight) for step in site.steps) == depth - 1
        for step in site.steps:
            ids = [entry.request_id for entries in (*step.in_flight, step.entries) for entry in entries]
            assert len(set(ids)) == len(ids)
    assert len(outputs[1]) == 36
    assert outputs[1] == outputs[2] == outputs[4]


class LastingEngine(SimEngine):
    """Runs three steps, and then no more: it is lost with two at once."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec, NO_TIME)
        self.both_begun = threading.Barrier(2)

    def execute(self, batch: StepBatch) -> StepResult:
        if batch.step >= 3:
            self.both_begun.wait(30)
            raise EngineLostError("a worker is gone")
        return super().execute(batch)


async def test_a_lost_engine_ends_the_service_and_no_request(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """There is no sign-off either: as with an executor that dies, others go on with what it had."""
    spec = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,), 2)
    settings = ExecutorSettings(model_path=str(model_folder), engine="sim", executor_id="lost")
    gateway_bus, engine = await Bus.connect(nats_url, "test"), LastingEngine(spec)
    told: list[FinishReason | None] = []

    async def on_tokens(message: StepTokens) -> None:
        told.extend(output.finish_reason for output in message.outputs)

    await gateway_bus.subscribe(subjects.tokens(GATEWAY), StepTokens, on_tokens)
    await be_there(gateway_bus)
    with no_error_unseen():  # of the two steps that it lost one is raised
        bus = await Bus.connect(nats_url, "lost")
        executor = ExecutorService(bus, settings, engine, tokenizer, SystemClock())
        await executor.start()
        serving = asyncio.create_task(executor.run())  # a task of its own, as run_service has it
        await gateway_bus.publish(subjects.inbox("lost"), make_online(1, 20, 40))
        await until(lambda: engine.both_begun.n_waiting == 1)
        await gateway_bus.publish(subjects.inbox("lost"), make_online(2, 20, 40))
        with pytest.raises(EngineLostError, match="a worker is gone"):
            await serving
        await executor.stop()
        await bus.close()
        info = executor.info
        del bus, executor, serving
    registered = await (await gateway_bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)).get("lost")
    assert registered.value == info
    await gateway_bus.flush()
    assert set(told) <= {None}
    await gateway_bus.close()


async def test_the_service_pauses_what_gives_way(nats_url: str, model_folder: Path, tokenizer: Tokenizer) -> None:
    outputs = {}
    for kv, changes in KV_STRATEGIES.items():
        online = [make_online(n, 60, 20) for n in range(12)]
        site = Site(1, 12, online[:1], kv, kv_blocks=14, late=online[1:])
        executor = await site.run(nats_url, model_folder, tokenizer)
        assert executor.info.strategy == Strategy.of("sarathi++", **changes)
        outputs[kv] = site.outputs
        is_paused = [state.num_kept_blocks is not None for step in site.steps for state in step.states]
        assert any(is_paused) == (changes.get("kv_sharing") == "bidirectional")
    assert len(outputs["lru"]) == 24
    assert all(output == outputs["lru"] for output in outputs.values())
