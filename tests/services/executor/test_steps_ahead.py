"""Steps that the loop hands over while the ones before them run: the service on a real bus, then real engines in it."""

import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from services.executor.engines.torch.engine import TorchEngine
from services.executor.engines.vllm.environment import import_vllm
from services.executor.service import ExecutorService
from services.executor.settings import ExecutorSettings
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import EngineError
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import PlanSource, StepPlan, StepStarted
from shared.protocol.tokens import StepTokens
from shared.replica.engine import Engine, KVRegions, KVShards, StepBatch, StepResult
from shared.replica.outputs import AddressedOutput
from shared.scheduling.kv.slot_transfers import SlotOperations
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.services.executor.live_gateway import GATEWAY, be_there
from tests.services.executor.test_pipeline_depth import Site, make_online
from tests.services.profiler.profiling import running, until
from tests.with_vllm import WITH_VLLM

SPEC = EngineSpec("m", "sim", "none", "float16", 512, 49152, 16, 48, (2,))


class HeldEngine(FollowingEngine):
    """A step ends when it is let go, or is interrupted; ``bad_step`` fails."""

    def __init__(self, bad_step: int | None = None) -> None:
        super().__init__(SPEC)
        self.began: list[StepBatch] = []
        self.bad_step = bad_step
        self._news = threading.Condition()
        self.num_let_go = 0
        self._asked: int | None = None

    def execute(self, batch: StepBatch) -> StepResult:
        self.began.append(batch)
        if batch.follows is not None and self._last_step._step != batch.follows:
            return super().execute(batch)
        with self._news:
            self._news.wait_for(lambda: self.num_let_go >= len(self.began) or self._is_stopped(batch))
            if self._is_stopped(batch):
                self._last_step.take(batch)
                return StepResult({}, 1.0, is_interrupted=True)
        if batch.step == self.bad_step:
            self.bad_step = None
            self._last_step.take(batch)
            raise EngineError("bad step")
        return super().execute(batch)

    def _is_stopped(self, batch: StepBatch) -> bool:
        return batch.may_be_interrupted and self._asked == batch.step

    def interrupt(self, step: int) -> None:
        with self._news:
            self._asked = step
            self._news.notify_all()

    def let_go(self, count: int = 1) -> None:
        """So many steps more."""
        with self._news:
            self.num_let_go += count
            self._news.notify_all()


class Rig:
    """A service around a held engine, and what it says."""

    def __init__(self, bus: Bus, engine: HeldEngine, service: ExecutorService) -> None:
        self.bus = bus
        self.engine = engine
        self.loop = service._loop
        self.replica = service._replica
        self.steps: list[StepStarted] = []
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}

    async def listen(self) -> None:
        async def on_tokens(message: StepTokens) -> None:
            for output in message.outputs:
                self.outputs.setdefault(output.request_id, []).extend(output.token_ids)
                if output.finish_reason is not None:
                    self.ended[output.request_id] = output.finish_reason

        async def on_step(message: StepStarted) -> None:
            if not message.idle:
                self.steps.append(message)

        await self.bus.subscribe(subjects.tokens(GATEWAY), StepTokens, on_tokens)
        await self.bus.subscribe(subjects.step("executor-0"), StepStarted, on_step)
        await be_there(self.bus)

    async def send(self, *requests: GenerateRequest) -> None:
        for request in requests:
            await self.bus.publish(subjects.inbox("executor-0"), request)

    async def until_ahead(self, *request_ids: str) -> None:
        """A step with these waits behind the one that runs, which is the last that the engine was given."""
        await until(lambda: self._is_ahead({*request_ids}))

    def _is_ahead(self, request_ids: set[str]) -> bool:
        ahead = self.loop._ahead
        return (
            ahead is not None
            and self.ids_of(ahead.batch) == request_ids
            and ahead.batch.follows == self.engine.began[-1].step
            and self.engine.num_let_go < len(self.engine.began)
        )

    async def until_ended(self, num_requests: int) -> None:
        self.engine.let_go(1 << 20)
        await until(lambda: len(self.ended) == num_requests and not self.replica.has_work)
        assert self.replica.pool.num_free == SPEC.num_blocks
        self.replica.pool.check_integrity()
        self.replica.table.check_integrity()

    def ids_of(self, batch: StepBatch) -> set[str]:
        return {sequence.request_id for sequence in batch.sequences}


@contextlib.asynccontextmanager
async def held(nats_url: str, model_folder: Path, tokenizer: Tokenizer, engine: HeldEngine) -> AsyncIterator[Rig]:
    settings = ExecutorSettings(
        model_path=str(model_folder), engine="sim", strategy=Strategy.of("sarathi++"), max_num_batched_tokens=64
    )
    own_bus, bus = await Bus.connect(nats_url, "executor-0"), await Bus.connect(nats_url, "test")
    service = ExecutorService(own_bus, settings, engine, tokenizer, SystemClock())
    rig = Rig(bus, engine, service)
    await rig.listen()
    async with running(service):
        try:
            yield rig
        finally:
            engine.let_go(1 << 20)
    await own_bus.close()
    await bus.close()


def offline(number: int, max_tokens: int) -> GenerateRequest:
    request = make_online(number, 20, max_tokens)
    return replace(request, kind=Kind.OFFLINE, sampling=replace(request.sampling, ignore_eos=True))


async def alone(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, requests: list[GenerateRequest]
) -> dict[str, list[int]]:
    engine = HeldEngine()
    engine.spec = replace(engine.spec, takes_steps_ahead=False)
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(*requests)
        await rig.until_ended(len(requests))
        assert all(batch.follows is None for batch in engine.began)
    return rig.outputs


async def test_the_next_step_waits_behind_the_one_that_runs(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """It begins without another word, and is told when the one before it has been applied."""
    engine, requests = HeldEngine(), [make_online(n, 20, 12) for n in range(4)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(requests[0])
        await rig.until_ahead("on-0")
        await until(lambda: bool(rig.steps))
        assert len(engine.began) == 1 and [step.step for step in rig.steps] == [0]
        engine.let_go()
        await rig.until_ahead("on-0")
        await until(lambda: len(rig.steps) == 2)
        assert [batch.follows for batch in engine.began] == [None, 0]
        (state,) = rig.steps[1].states
        assert (state.num_computed_tokens, state.num_tokens, state.num_in_flight_tokens) == (20, 21, 1)
        await rig.send(*requests[1:])
        await rig.until_ended(4)
    assert [step.step for step in rig.steps] == list(range(len(rig.steps)))
    assert rig.outputs == await alone(nats_url, model_folder, tokenizer, requests)


async def test_an_online_request_takes_the_place_of_a_step_that_waits(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    engine, requests = HeldEngine(), [make_online(n, 20, 12) for n in range(2)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(requests[0])
        await rig.until_ahead("on-0")
        await rig.send(requests[1])
        await rig.until_ahead("on-0", "on-1")
        engine.let_go()
        await until(lambda: len(engine.began) == 2)
        assert rig.ids_of(engine.began[1]) == {"on-0", "on-1"} and engine.began[1].follows == 0
        await rig.until_ended(2)
    assert rig.outputs == await alone(nats_url, model_folder, tokenizer, requests)


async def test_a_plan_takes_the_place_of_a_step_made_without_it(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """And brings its offline request."""
    engine, (online, late) = HeldEngine(), [make_online(1, 20, 6), offline(2, 6)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(online)
        await rig.until_ahead("on-1")
        await until(lambda: bool(rig.steps))
        entries = [ScheduledRequest("on-1", Kind.ONLINE, 1), ScheduledRequest("on-2", Kind.OFFLINE, 20)]
        plan = StepPlan("executor-0", rig.steps[0].epoch, 1, entries, [late], [], 5.0)
        await rig.bus.publish(subjects.plan("executor-0"), plan)
        await rig.until_ahead("on-1", "on-2")
        engine.let_go()
        await until(lambda: len(rig.steps) == 2)
        assert rig.steps[1].source is PlanSource.PLAN and rig.steps[1].entries == entries
        await rig.until_ended(2)
    assert rig.replica.totals.plans_stale == 0 and rig.replica.totals.steps_planned == 1


async def test_what_an_interrupted_step_took_is_not_counted_to_the_next_one(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand seconds of it, by the loop's clock."""

    class LateClock(SystemClock):
        late_s = 0.0

        def monotonic_s(self) -> float:
            return super().monotonic_s() + self.late_s

    engine, clock, turns_ms = HeldEngine(), LateClock(), []
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        rig.loop._clock = clock
        finish = rig.replica.finish

        def noting(result: StepResult, turn_ms: float | None = None) -> list[AddressedOutput]:
            turns_ms.append(turn_ms or 0.0)
            return finish(result, turn_ms)

        monkeypatch.setattr(rig.replica, "finish", noting)
        await rig.send(offline(7, 12))
        await until(lambda: len(engine.began) == 1)
        clock.late_s = 1000.0
        await rig.send(make_online(0, 20, 12))
        await until(lambda: rig.replica.totals.steps_interrupted == 1)
        await rig.until_ended(2)
    assert len(turns_ms) >= 12 and max(turns_ms) < 500_000.0


async def test_with_an_interrupted_step_falls_the_one_behind_it(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    engine, requests = HeldEngine(), [offline(1, 12), offline(2, 12), make_online(3, 20, 12)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(*requests[:2])
        await until(lambda: bool(engine.began))
        engine.let_go()
        await rig.until_ahead("on-1", "on-2")
        await rig.send(requests[2])
        await until(lambda: engine.began[-1].step > 1 and engine.began[-1].follows is None)
        assert "on-3" in rig.ids_of(engine.began[-1])
        await rig.until_ended(3)
    assert rig.replica.totals.steps_interrupted == 1
    assert rig.outputs == await alone(nats_url, model_folder, tokenizer, requests)


async def test_with_a_failed_step_falls_the_one_behind_it(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    """Which the engine has been given by then."""
    engine, requests = HeldEngine(bad_step=3), [make_online(n, 20, 12) for n in range(3)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(*requests)
        engine.let_go(3)
        await until(lambda: len(engine.began) > 3)
        await rig.until_ahead("on-0", "on-1", "on-2")
        await rig.until_ended(3)
    assert engine.bad_step is None
    assert set(rig.ended.values()) <= {FinishReason.STOP, FinishReason.LENGTH}
    assert rig.outputs == await alone(nats_url, model_folder, tokenizer, requests)


async def test_an_abort_leaves_a_row_for_nothing_in_the_step_behind(
    nats_url: str, model_folder: Path, tokenizer: Tokenizer
) -> None:
    engine, requests = HeldEngine(), [make_online(n, 20, 12) for n in range(2)]
    async with held(nats_url, model_folder, tokenizer, engine) as rig:
        await rig.send(*requests)
        await until(lambda: bool(engine.began))
        engine.let_go()
        await rig.until_ahead("on-0", "on-1")
        await rig.bus.publish(subjects.inbox("executor-0"), AbortRequests(["on-0"]))
        await until(lambda: bool(rig.replica._live.aborting))
        began = len(engine.began)
        engine.let_go()
        await until(lambda: len(engine.began) > began and "on-0" in rig.ended)
        assert rig.ids_of(engine.began[began]) == {"on-0", "on-1"}
        await until(lambda: [entry.request_id for entry in rig.steps[-1].entries] == ["on-1"])
        await rig.until_ended(2)
    assert rig.ended["on-0"] is FinishReason.ABORT
    expected = await alone(nats_url, model_folder, tokenizer, requests)
    assert rig.outputs["on-1"] == expected["on-1"]


class Watched:
    """An engine, and how many of its steps followed one that ran. It stays open."""

    def __init__(self, engine: Engine, takes_steps_ahead: bool) -> None:
        name = f"{engine.spec.engine}-{takes_steps_ahead}"
        self.spec = replace(engine.spec, engine=name, takes_steps_ahead=takes_steps_ahead)
        self.num_following = 0
        self._engine = engine

    def start_copies(self, copies: SlotOperations) -> None:
        self._engine.start_copies(copies)

    def execute(self, batch: StepBatch) -> StepResult:
        self.num_following += batch.follows is not None
        return self._engine.execute(batch)

    def interrupt(self, step: int) -> None:
        self._engine.interrupt(step)

    def kv_regions(self) -> KVRegions | KVShards | str:
        return self._engine.kv_regions()

    def close(self) -> None:
        pass


def load(kind: str, model: Path) -> Any:
    if kind == "torch":
        return TorchEngine.load(model, "test", device="cpu", num_blocks=64, num_threads=1)
    import_vllm(1)
    from services.executor.engines.vllm.core import VllmOptions
    from services.executor.engines.vllm.engine import VllmEngine

    return VllmEngine.load(model, "test", VllmOptions(1, num_blocks=64, max_num_seqs=16))


@pytest.mark.parametrize(
    "kind",
    ["torch", pytest.param("vllm", marks=WITH_VLLM)],
)
async def test_an_engine_says_the_same(nats_url: str, shallow_model: Path, tokenizer: Tokenizer, kind: str) -> None:
    """Greedy and seeded, with ends of all sorts, beside offline work that a scheduler plans."""
    samplings = [
        SamplingParams(24, 0.0),
        SamplingParams(24, 0.0, stop=(" the", " a", ".")),
        SamplingParams(24, 0.8, seed=5, top_k=20),
        SamplingParams(24, 0.8, seed=6, top_k=20, presence_penalty=0.5),
        SamplingParams(9, 0.8, seed=7, ignore_eos=True),
    ]
    prompts = [tokenizer.encode(text) for text in ("Once upon a time", "The capital of France is", "1, 2, 3, 4,")]
    online = [
        replace(make_online(n, 1, 1), prompt_token_ids=prompts[n % 3], sampling=samplings[n % 5]) for n in range(10)
    ]
    engine = load(kind, shallow_model)
    outputs = []
    for takes_steps_ahead in (False, True):
        watched = Watched(engine, takes_steps_ahead)
        site = Site(1, 6, online[:5], late=online[5:], engine=watched)
        executor = await site.run(nats_url, shallow_model, tokenizer)
        assert (watched.num_following > 5) == takes_steps_ahead
        assert executor._replica.pool.num_free == 64
        executor._replica.pool.check_integrity()
        assert isinstance(executor.details()["steps_planned"], int)
        outputs.append(site.outputs)
    engine.close()
    assert outputs[0] == outputs[1]
