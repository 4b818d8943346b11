"""The tracker and the registry over a real bus, against a peer that sends what a healthy executor would not."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from services.gateway.access.rate_limits import UNLIMITED, RateLimits, Share
from services.gateway.access.waiting_room import WINDOW_S
from services.gateway.http.tally import KeyTally
from services.gateway.live.choices import Choices
from services.gateway.live.generation import TRIAL_TOKENS, OnlineGeneration, Sender
from services.gateway.live.metrics import GenerationMetrics
from services.gateway.live.online_tracker import MAX_MISSED, OnlineTracker
from services.gateway.live.registry import ExecutorRegistry
from services.gateway.live.router import Router
from services.gateway.live.tracker import MAX_CRASHES, MAX_LOSSES
from services.gateway.live.vllm_requests import VllmRequests
from shared.bus import Bus
from shared.clock import SystemClock
from shared.errors import NoExecutorError
from shared.latency.features import BatchFeatures
from shared.openai.completions.requests import TEXT, CompletionRequest
from shared.openai.objects import error_body
from shared.process.telemetry import Telemetry
from shared.protocol import subjects
from shared.protocol.executors import EngineSpec, ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.handover import Place, Taken
from shared.protocol.requests import AbortRequests, GenerateRequest, HeldRequests, InboxMessage
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import CacheTold
from shared.protocol.tokens import StepTokens, TokenOutput
from shared.scheduling.kv.prefix_cache import CacheChanges
from shared.scheduling.placement.role import Role
from shared.watch.tuning import Tuning
from tests.services.gateway.gateway_rig import MODEL, GatewayRig

GATEWAY = "gateway-test"
REQUEST = CompletionRequest(
    endpoint=TEXT,
    model="m",
    prompt_token_ids=[1, 2, 3],
    sampling=SamplingParams(max_tokens=8, seed=1),
    stream=True,
    include_usage=False,
    user=None,
)


@dataclass
class Peer:
    """An executor's side of the bus, moved by the test."""

    bus: Bus
    executor_id: str
    epoch: str = "epoch-1"
    cache: CacheChanges = field(default_factory=lambda: CacheChanges(0, True))  # all that its prefix cache has
    inbox: asyncio.Queue[GenerateRequest | AbortRequests] = field(default_factory=asyncio.Queue)
    gateway_id: str = GATEWAY  # of the last request
    role: Role = Role.MIXED
    kv_link: str = "sim"
    adapters: tuple[str, ...] = ()

    async def listen(self) -> None:
        await self.bus.subscribe(subjects.inbox(self.executor_id), InboxMessage, self.inbox.put)
        await self.bus.serve(subjects.executor_alive(self.executor_id), object, self.alive)
        await self.bus.serve(subjects.cache(self.executor_id), object, self.tell_cache)
        await self.bus.flush()

    async def tell_cache(self, _: object) -> CacheChanges:
        """As an executor answers who does not know it."""
        return self.cache

    async def change_cache(self, changes: CacheChanges) -> None:
        """With a step message."""
        await self.bus.publish(subjects.step(self.executor_id), CacheTold(self.executor_id, self.epoch, changes))

    async def alive(self, _: object) -> str:
        """As an executor answers who asks whether it is there."""
        return self.epoch

    async def beat(
        self, model: str = "m", draining: bool = False, online_running: int = 0, reconnects: int = 0
    ) -> None:
        """Each online request that runs decodes over 100 tokens."""
        spec = EngineSpec(model, "sim", "cpu", "float16", 256, 49152, 16, 64, (2,), adapters=self.adapters)
        info = ExecutorInfo(self.executor_id, self.epoch, 1, "key", spec, 8, 512, role=self.role, kv_link=self.kv_link)
        work = BatchFeatures(0, 0, 100 * online_running, online_running, 0)
        heartbeat = Heartbeat(info, ExecutorCounters(), draining, 0, online_running, 0, 0, 64, work, reconnects)
        await self.bus.publish(subjects.heartbeat(self.executor_id), heartbeat)

    @property
    def place(self) -> Place:
        return Place(self.executor_id, self.epoch)

    async def take(self, request_id: str, giver: "Peer") -> None:
        """Say that the request is here from now on, with what the giver had of it."""
        self.gateway_id = giver.gateway_id
        taken = Taken(request_id, giver.gateway_id, giver.place, self.place)
        await self.bus.publish(subjects.taken(self.executor_id), taken)

    async def next_request(self) -> GenerateRequest:
        message = await asyncio.wait_for(self.inbox.get(), 10)
        assert isinstance(message, GenerateRequest), message
        self.gateway_id = message.gateway_id
        return message

    async def tell_held(self, request_ids: list[str]) -> list[str]:
        """As an executor does from time to time; those that the gateway does not wait for."""
        held = HeldRequests(self.executor_id, self.epoch, request_ids)
        return (await self.bus.request(subjects.alive(self.gateway_id), held, AbortRequests)).request_ids

    async def next_abort(self) -> list[str]:
        message = await asyncio.wait_for(self.inbox.get(), 10)
        assert isinstance(message, AbortRequests), message
        return message.request_ids

    async def send(
        self,
        request_id: str,
        token_ids: list[int],
        finish: FinishReason | None = None,
        error: str = "",
        epoch: str = "",
        so_far: int | None = None,
    ) -> None:
        output = TokenOutput(request_id, token_ids, finish, 0, error, so_far)
        message = StepTokens(self.executor_id, epoch or self.epoch, 1, [output])
        await self.bus.publish(subjects.tokens(self.gateway_id), message)


@dataclass
class Front:
    """The gateway's side."""

    registry: ExecutorRegistry
    router: Router
    tracker: OnlineTracker

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for state that changes as messages arrive."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 (it changes in several places)
                await asyncio.sleep(0.005)

    async def submit(self, request: CompletionRequest = REQUEST, share: Share = UNLIMITED) -> OnlineGeneration:
        return await asyncio.wait_for(self.tracker.submit(request, Sender("client"), share), 60)


@contextmanager
def made_metrics() -> Iterator[GenerationMetrics]:
    telemetry = Telemetry("test")
    yield GenerationMetrics(
        telemetry.meter, VllmRequests(telemetry.registry, 100, {REQUEST.model: REQUEST.model}), KeyTally()
    )
    telemetry.close()


@pytest.fixture
async def front(bus: Bus) -> AsyncIterator[Front]:
    registry, tuning = ExecutorRegistry(bus, "m"), Tuning(bus, lambda: None)
    router = Router(registry, tuning)
    with made_metrics() as metrics:
        tracker = OnlineTracker(bus, router, GATEWAY, SystemClock(), metrics)
        async with _at_work(registry, tuning, tracker):
            yield Front(registry, router, tracker)


@asynccontextmanager
async def _at_work(registry: ExecutorRegistry, tuning: Tuning, tracker: OnlineTracker) -> AsyncIterator[None]:
    await registry.start()
    await tracker.start()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in (registry, tuning, tracker)]
        yield
        for task in running:
            task.cancel()


@pytest.fixture
async def peer(bus: Bus, front: Front) -> Peer:
    return await alive(Peer(bus, "executor-0"), front)


async def alive(peer: Peer, front: Front) -> Peer:
    await peer.listen()
    await peer.beat()
    await front.until(lambda: any(e.info.executor_id == peer.executor_id for e in front.registry.live()))
    return peer


def load(front: Front, executor_id: str) -> int:
    """Online requests that it is expected to have."""
    (work,) = [each.target.work() for each in front.registry.live() if each.info.executor_id == executor_id]
    return work.prefill_requests + work.decode_requests


async def test_tokens_arrive_until_the_end(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    assert (request.prompt_token_ids, request.sampling, request.gateway_id) == ([1, 2, 3], REQUEST.sampling, GATEWAY)
    await peer.send(request.request_id, [5])
    assert await generation.next_tokens() == [5]
    await peer.send(request.request_id, [6])
    await peer.send(request.request_id, [7], FinishReason.LENGTH)
    await generation.finished()
    assert await generation.next_tokens() == [6, 7]
    assert generation.finish_reason is FinishReason.LENGTH
    assert front.tracker.num_live == 0


async def test_executors_are_at_work_here_while_they_have_requests(front: Front, peer: Peer) -> None:
    other = await alive(Peer(peer.bus, "executor-1"), front)
    assert front.tracker.places() == {}
    generation = await front.submit()
    took = peer if generation.executor_id == peer.executor_id else other
    assert front.tracker.places() == {(took.executor_id, took.epoch): None}
    sent = await took.next_request()
    await took.send(sent.request_id, [5], FinishReason.STOP)
    await front.until(lambda: generation.finish_reason is not None)
    assert front.tracker.places() == {}


async def test_tokens_that_cannot_be_taken_end_their_request_alone(
    front: Front, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = await front.submit(), await front.submit()
    outputs = [TokenOutput((await peer.next_request()).request_id, [5], FinishReason.LENGTH) for _ in range(2)]
    monkeypatch.setattr(broken, "take", None)  # not to be called
    await peer.bus.publish(subjects.tokens(GATEWAY), StepTokens(peer.executor_id, peer.epoch, 1, outputs))
    await whole.finished()
    assert whole.finish_reason is FinishReason.LENGTH
    assert (broken.finish_reason, front.tracker.num_live) == (FinishReason.ERROR, 0)
    assert "could not take the tokens" in broken.error
    assert await peer.next_abort() == [outputs[0].request_id]


async def test_tokens_of_another_incarnation_are_ignored(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    await peer.send(request.request_id, [99], epoch="epoch-0")
    await peer.send("unknown", [98], FinishReason.LENGTH)
    await peer.send(request.request_id, [5])
    assert await generation.next_tokens() == [5]


async def test_what_an_executor_missed_while_it_was_off_the_bus_is_sent_again(front: Front, peer: Peer) -> None:
    await front.submit()
    first = await peer.next_request()
    await peer.beat(reconnects=1)
    assert await peer.next_abort() == [first.request_id]
    second = await peer.next_request()
    assert second.request_id != first.request_id
    await peer.beat(reconnects=1)
    await peer.beat(online_running=3, reconnects=1)
    await front.until(lambda: load(front, "executor-0") == 4)  # its own prompt, and three that others sent
    assert peer.inbox.empty()


async def test_a_new_epoch_gets_the_request_again_with_its_tokens(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    first = await peer.next_request()
    await peer.send(first.request_id, [5, 6])
    assert await generation.next_tokens() == [5, 6]
    peer.epoch = "epoch-2"
    await peer.beat()
    assert await peer.next_abort() == [first.request_id]
    second = await peer.next_request()
    assert second.request_id != first.request_id
    assert second.output_token_ids == [5, 6]
    assert (second.arrival_s, second.sampling) == (first.arrival_s, first.sampling)
    await peer.send(first.request_id, [99])
    await peer.send(second.request_id, [7], FinishReason.STOP)
    assert await generation.next_tokens() == [7]
    assert generation.output_token_ids == [5, 6, 7]


async def test_an_abort_that_nobody_asked_for_moves_the_request(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    for attempt in range(MAX_LOSSES):
        request = await peer.next_request()
        if attempt == 0:
            await peer.send(request.request_id, [5])
        assert request.output_token_ids == [5][:attempt]
        await peer.send(request.request_id, [], FinishReason.ABORT)
        assert await peer.next_abort() == [request.request_id]
    await generation.finished()
    assert generation.finish_reason is FinishReason.ERROR
    assert str(MAX_LOSSES) in generation.error


async def test_that_the_bus_was_away_is_not_held_against_a_request(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    for times in range(1, MAX_LOSSES + MAX_CRASHES):
        await peer.next_request()
        await peer.beat(reconnects=times)
        await peer.next_abort()
    request = await peer.next_request()
    await peer.send(request.request_id, [5], FinishReason.LENGTH)
    await generation.finished()
    assert (generation.finish_reason, generation.output_token_ids) == (FinishReason.LENGTH, [5])


async def test_an_executor_that_is_heard_again_has_not_died(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    for _ in range(MAX_CRASHES + 1):
        await peer.next_request()
        (executor,) = front.registry.live()
        front.registry.lose(executor.info, "silent")
        await peer.next_abort()
        assert len(generation.crashes) == 1
        await peer.beat()
    await peer.next_request()
    assert not generation.crashes and generation.finish_reason is None


async def test_only_the_request_that_kills_executors_is_given_up(front: Front, peer: Peer) -> None:
    """The others are in the middle of their answers."""
    innocents = [await front.submit() for _ in range(4)]
    poison = await front.submit(replace(REQUEST, prompt_token_ids=[99]))
    num_crashes = 0
    held: dict[str, GenerateRequest] = {}
    while poison.finish_reason is None or len(held) < len(innocents):
        message = await asyncio.wait_for(peer.inbox.get(), 10)
        if isinstance(message, AbortRequests):
            continue
        held[message.request_id] = message
        if message.prompt_token_ids == [99]:
            num_crashes += 1
            held.clear()
            peer.epoch = f"epoch-{num_crashes + 1}"
            await peer.beat()
        else:
            await peer.send(message.request_id, [5] * TRIAL_TOKENS)
    assert (poison.finish_reason, num_crashes) == (FinishReason.ERROR, MAX_CRASHES)
    assert f"{MAX_CRASHES} executors died while they had it" in poison.error
    for request_id in held:
        await peer.send(request_id, [6], FinishReason.LENGTH)
    for generation in innocents:
        await asyncio.wait_for(generation.finished(), 10)
        assert generation.finish_reason is FinishReason.LENGTH


async def test_tokens_that_were_lost_on_the_way_are_generated_again(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    await peer.send(request.request_id, [5], so_far=1)
    await peer.send(request.request_id, [7], FinishReason.LENGTH, so_far=3)
    assert await peer.next_abort() == [request.request_id]
    again = await peer.next_request()
    assert again.output_token_ids == [5]
    await peer.send(again.request_id, [6], so_far=2)
    await peer.send(again.request_id, [7], FinishReason.LENGTH, so_far=3)
    await generation.finished()
    assert generation.output_token_ids == [5, 6, 7]


async def test_what_nobody_waits_for_is_aborted(front: Front, peer: Peer) -> None:
    await front.submit()
    request = await peer.next_request()
    await peer.send("unknown", [5])
    assert await peer.next_abort() == ["unknown"]
    await peer.send("unknown", [6], FinishReason.LENGTH)
    assert await peer.tell_held(["unknown", request.request_id]) == ["unknown"]
    assert peer.inbox.empty()


async def test_what_an_executor_does_not_have_is_sent_again(front: Front, peer: Peer) -> None:
    """Whether the request was lost on its way, or the last of its tokens."""
    await front.submit()
    first = await peer.next_request()
    for _ in range(MAX_MISSED - 1):
        await peer.tell_held([])
    await peer.tell_held([first.request_id])
    for _ in range(MAX_MISSED - 1):
        await peer.tell_held([])
    assert peer.inbox.empty()
    await peer.tell_held([])
    assert await peer.next_abort() == [first.request_id]
    assert (await peer.next_request()).request_id != first.request_id


async def test_an_executors_error_ends_the_request(front: Front, peer: Peer) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    await peer.send(request.request_id, [], FinishReason.ERROR, error="out of luck")
    await generation.finished()
    assert (generation.finish_reason, generation.error) == (FinishReason.ERROR, "out of luck")


@pytest.mark.parametrize(("finish_reason", "left"), [(FinishReason.ERROR, 100), (FinishReason.STOP, 95)])
async def test_a_failed_request_costs_no_tokens(
    front: Front, peer: Peer, finish_reason: FinishReason, left: int
) -> None:
    limits = RateLimits(None, 100, 0.0)
    generation = await front.submit(share=limits.reserve_tokens(11, 0.0).shares([0])[0])
    request = await peer.next_request()
    await peer.send(request.request_id, [5, 6], finish_reason)
    await generation.finished()
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == str(left)


async def test_a_choice_that_fails_ends_its_request_which_costs_nothing(front: Front, peer: Peer) -> None:
    limits = RateLimits(None, 100, 0.0)
    completion = replace(REQUEST, sampling=replace(REQUEST.sampling, n=3))
    choices = await Choices.submit(front.tracker, completion, Sender("client"), limits.reserve_tokens(60, 0.0))
    first, second, _ = [await peer.next_request() for _ in range(3)]
    await peer.send(first.request_id, [5, 6], FinishReason.STOP)
    await peer.send(second.request_id, [5], FinishReason.ERROR, error="out of luck")
    await asyncio.wait_for(choices.finished(), 10)
    assert choices.generations[2].finish_reason is None, "the third runs on until the choices are closed"
    await choices.aclose()
    assert limits.headers(0.0)["x-ratelimit-remaining-tokens"] == "100"


async def test_who_is_answered_without_a_token_has_been_served(front: Front, peer: Peer) -> None:
    """As embeddings are. Somebody waits all the time, so that what is served tells for how long."""
    waiting = await front.submit()
    begun_s, sent = waiting.started_s, await peer.next_request()
    for _ in range(3):
        following = await front.submit()
        sent_next = await peer.next_request()
        await peer.send(sent.request_id, [], FinishReason.LENGTH)
        await asyncio.wait_for(waiting.finished(), 10)
        sent, waiting = sent_next, following
    assert front.tracker.room.expected_wait_s(begun_s + WINDOW_S) == pytest.approx(WINDOW_S / 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_executors_error_reaches_the_client(nats_url: str, bus: Bus, tmp_path: Path, stream: bool) -> None:
    peer = Peer(bus, "executor-0")
    await peer.listen()
    with GatewayRig(tmp_path, nats_url) as rig:
        rig.start_gateway()
        await peer.beat(MODEL)
        async with httpx.AsyncClient(base_url=rig.url, timeout=20) as client, asyncio.TaskGroup() as tasks:
            body = {"model": MODEL, "prompt": "x", "stream": stream}
            answering = tasks.create_task(client.post("/v1/completions", json=body))
            request = await peer.next_request()
            await peer.send(request.request_id, [5])
            await peer.send(request.request_id, [], FinishReason.ERROR, error="out of luck")
            response = await answering
            answering = tasks.create_task(client.post("/v1/completions", json=body))
            odd = await peer.next_request()
            await peer.send(odd.request_id, [1 << 40], FinishReason.LENGTH)  # a token that no tokenizer has
            other_response = await answering
        failure = "the server failed to process the request"
        for each, why in ((response, "out of luck"), (other_response, failure)):
            last = each.text.rstrip().splitlines()[-1].removeprefix("data: ")
            assert each.status_code == (200 if stream else 500)
            assert json.loads(last) == error_body(why, "server_error")


async def test_closing_aborts_what_runs_and_only_that(front: Front, peer: Peer) -> None:
    running, ended = await front.submit(), await front.submit()
    first, second = await peer.next_request(), await peer.next_request()
    await peer.send(second.request_id, [5], FinishReason.LENGTH)
    await ended.finished()
    await front.tracker.close(ended)
    await front.tracker.close(running)
    assert await peer.next_abort() == [first.request_id]
    assert running.finish_reason is FinishReason.ABORT
    assert peer.inbox.empty() and front.tracker.num_live == 0


async def test_a_request_closed_while_it_waits_to_be_resumed_is_not(front: Front, peer: Peer, bus: Bus) -> None:
    generation = await front.submit()
    request = await peer.next_request()
    await peer.send(request.request_id, [5], FinishReason.ABORT)
    await peer.beat(draining=True)
    await front.until(lambda: not front.registry.available())
    await front.tracker.close(generation)
    other = await alive(Peer(bus, "executor-1"), front)
    await front.submit()
    assert (await other.next_request()).output_token_ids == []
    assert front.tracker.num_live == 1


async def test_executors_of_another_model_do_not_count(front: Front, bus: Bus) -> None:
    peer, other = Peer(bus, "executor-0"), Peer(bus, "executor-1")
    await peer.beat(model="another")
    await alive(other, front)
    assert [executor.info.executor_id for executor in front.registry.live()] == ["executor-1"]


async def test_waiting_for_an_executor_ends_in_time(front: Front) -> None:
    with pytest.raises(NoExecutorError, match="m is alive"):
        await front.router.route_within([1], 0.05)


async def test_a_registration_that_is_deleted_ends_the_executor(front: Front, peer: Peer, bus: Bus) -> None:
    bucket = await bus.bucket(subjects.EXECUTORS_BUCKET, ExecutorInfo)
    await bucket.put("executor-0", front.registry.live()[0].info)
    await bucket.delete("executor-0")
    await front.until(lambda: not front.registry.live())
    assert front.router.route([1]) is None


async def test_the_context_is_the_shortest_of_the_executors(front: Front, peer: Peer) -> None:
    assert front.registry.max_model_len(8192) == 256
    await peer.beat(draining=True)
    await front.until(lambda: not front.registry.available())
    assert front.registry.max_model_len(8192) == 8192
