"""Requests that move between executors, and who gets new ones, over a real bus."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random

import pytest
from msgspec.structs import replace

from services.gateway.live.flex_tracker import FlexTracker
from services.gateway.live.generation import TRIAL_TOKENS, Sender
from services.gateway.live.online_tracker import MAX_MISSED
from services.gateway.live.tracker import MAX_CRASHES
from shared.bus import Bus
from shared.clock import SystemClock
from shared.protocol import subjects
from shared.protocol.offline.flex import FlexAnswer, FlexMessage, FlexSubmit
from shared.protocol.profiling.online import OnlineServed
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.scheduling.placement.role import Role
from tests.services.gateway.live.test_tracker import REQUEST, Front, Peer, alive, front, load, made_metrics, peer

__all__ = ["front", "peer"]


@pytest.fixture
async def taker(bus: Bus, front: Front, peer: Peer) -> Peer:
    """Strict, so that no request begins there; the peer is relaxed."""
    peer.role = Role.RELAXED
    await peer.beat()
    made = await alive(Peer(bus, "executor-1", role=Role.STRICT), front)
    await front.until(lambda: len(front.registry.for_prompts()) == 1)
    return made


def num_decodes(front: Front, executor_id: str) -> int:
    (work,) = [each.target.work() for each in front.registry.live() if each.info.executor_id == executor_id]
    return work.decode_requests


async def test_a_stream_goes_on_from_who_has_taken_it(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    assert await generation.next_tokens() == [5]
    assert num_decodes(front, "executor-0") == 1
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    assert (load(front, "executor-0"), num_decodes(front, "executor-1")) == (0, 1)
    await taker.send(request_id, [6], so_far=2)
    await taker.send(request_id, [7], FinishReason.LENGTH, so_far=3)
    await generation.finished()
    assert (generation.output_token_ids, generation.attempt) == ([5, 6, 7], 1)
    assert load(front, "executor-0") == load(front, "executor-1") == 0
    assert peer.inbox.empty() and taker.inbox.empty()


async def test_tokens_of_both_may_come_before_the_news_or_after_it(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    await taker.send(request_id, [6], so_far=2)
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    await peer.send(request_id, [7], so_far=3)
    await taker.send(request_id, [8], FinishReason.LENGTH, so_far=4)
    await generation.finished()
    assert (generation.output_token_ids, generation.attempt) == ([5, 6, 7, 8], 1)


async def test_a_move_whose_news_is_lost_is_known_by_its_tokens(front: Front, peer: Peer, taker: Peer) -> None:
    """Nobody is stopped for it, and nothing is sent again."""
    third = await alive(Peer(taker.bus, "executor-2", role=Role.STRICT), front)
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    await taker.send(request_id, [6], so_far=2)
    await front.until(lambda: generation.executor_id == "executor-1")
    assert (load(front, "executor-0"), num_decodes(front, "executor-1")) == (0, 1)
    for _ in range(MAX_MISSED):
        assert await peer.tell_held([]) == await taker.tell_held([request_id]) == []
    await peer.send(request_id, [7], so_far=3)
    await front.until(lambda: generation.output_token_ids == [5, 6, 7])
    assert generation.executor_id == "executor-1", "a token of the giver that was late"
    await third.send(request_id, [8], so_far=4)
    await front.until(lambda: generation.executor_id == "executor-2")
    await taker.take(request_id, peer)
    await third.take(request_id, taker)
    await third.send(request_id, [9], FinishReason.LENGTH, so_far=5)
    await generation.finished()
    assert (generation.output_token_ids, generation.attempt) == ([5, 6, 7, 8, 9], 1)
    assert peer.inbox.empty() and taker.inbox.empty() and third.inbox.empty()
    assert [load(front, f"executor-{number}") for number in range(3)] == [0, 0, 0]


async def test_back_where_it_was(front: Front, peer: Peer, taker: Peer) -> None:
    """A place that it has left may take it again."""
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    for number, (giver, there) in enumerate([(peer, taker), (taker, peer), (peer, taker)]):
        await there.take(request_id, giver)
        await front.until(lambda: generation.executor_id == there.executor_id)  # noqa: B023 - awaited here
        assert await giver.tell_held([request_id]) == [request_id]
        assert await there.tell_held([request_id]) == []
        await there.send(request_id, [number], so_far=2 + number)
    await taker.send(request_id, [9], FinishReason.LENGTH, so_far=5)
    await generation.finished()
    assert (generation.output_token_ids, generation.attempt) == ([5, 0, 1, 2, 9], 1)


async def test_who_went_on_with_what_was_taken_is_stopped(front: Front, peer: Peer, taker: Peer) -> None:
    """A giver that took its taker for dead."""
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    await taker.take(request_id, peer)
    await taker.send(request_id, [6], so_far=2)
    await front.until(lambda: generation.output_token_ids == [5, 6])
    await peer.send(request_id, [66], so_far=2)
    await peer.send(request_id, [], FinishReason.ABORT, so_far=2)
    await peer.send(request_id, [], FinishReason.ERROR, "out of luck", so_far=2)
    assert await peer.tell_held([request_id]) == [request_id]
    assert await taker.tell_held([request_id]) == []
    await taker.send(request_id, [7], FinishReason.LENGTH, so_far=3)
    await generation.finished()
    assert (generation.output_token_ids, generation.error) == ([5, 6, 7], "")


async def test_tokens_that_a_taker_lost_are_generated_again(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    await taker.send(request_id, [7], so_far=3)
    assert await taker.next_abort() == [request_id]
    again = await peer.next_request()
    assert (again.output_token_ids, again.is_resumed) == ([5], True)
    assert generation.finish_reason is None


async def test_what_nobody_waits_for_there_is_stopped_at_its_taker(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await front.tracker.close(generation)
    assert await peer.next_abort() == [request_id]
    await taker.take(request_id, peer)
    assert await taker.next_abort() == [request_id]
    await front.submit()
    resumed = await peer.next_request()
    await peer.send(resumed.request_id, [5], FinishReason.ABORT)  # for one that is sent again under another id
    assert await peer.next_abort() == [resumed.request_id]
    again = await peer.next_request()
    await taker.take(resumed.request_id, peer)
    assert await taker.next_abort() == [resumed.request_id]
    third = await alive(Peer(taker.bus, "executor-2", role=Role.STRICT), front)
    await third.take(again.request_id, taker)  # who does not have it
    assert await third.next_abort() == [again.request_id]
    assert load(front, "executor-0") == 1


async def test_requests_of_another_gateway_are_its_own(front: Front, peer: Peer, taker: Peer) -> None:
    await front.submit()
    request = await peer.next_request()
    peer.gateway_id = "gateway-other"
    await taker.take("unknown", peer)
    await taker.take(request.request_id, peer)
    peer.gateway_id = request.gateway_id
    await taker.take("last", peer)
    assert await taker.next_abort() == ["last"]


async def test_a_client_that_leaves_ends_it_where_it_is(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    await front.tracker.close(generation)
    assert await taker.next_abort() == [request_id]
    assert peer.inbox.empty() and load(front, "executor-1") == 0


@pytest.mark.parametrize("is_heard_of_late", [False, True])
async def test_a_taker_that_dies(front: Front, peer: Peer, taker: Peer, is_heard_of_late: bool) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    (executor,) = [each for each in front.registry.live() if each.info.executor_id == "executor-1"]
    if is_heard_of_late:
        front.registry.lose(executor.info)
    await taker.take(request_id, peer)
    if not is_heard_of_late:
        await front.until(lambda: generation.executor_id == "executor-1")
        front.registry.lose(executor.info)
    assert await taker.next_abort() == [request_id]
    again = await peer.next_request()
    assert again.output_token_ids == [5]
    await peer.send(again.request_id, [6], FinishReason.LENGTH, so_far=2)
    await generation.finished()
    assert generation.output_token_ids == [5, 6]


async def test_a_giver_that_dies_takes_nothing_with_it(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    peer.epoch = "epoch-2"
    await peer.beat()
    await front.until(lambda: any(each.info.epoch == "epoch-2" for each in front.registry.live()))
    await taker.send(request_id, [5], FinishReason.LENGTH, so_far=1)
    await generation.finished()
    assert peer.inbox.empty() and taker.inbox.empty()


async def test_a_taker_of_whom_nobody_heard_does_not_run_for_ever(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    taker.gateway_id = peer.gateway_id
    assert await taker.tell_held([request_id]) == [request_id]
    for _ in range(MAX_MISSED):
        await peer.tell_held([])
    assert await peer.next_abort() == [request_id]
    again = await peer.next_request()
    await peer.send(again.request_id, [5], FinishReason.LENGTH)
    await generation.finished()
    assert generation.output_token_ids == [5]


async def test_a_comparison_waits_for_the_news_before_it(front: Front, peer: Peer, taker: Peer) -> None:
    """However many others move."""
    generations = [await front.submit() for _ in range(50)]
    request_ids = [(await peer.next_request()).request_id for _ in generations]
    for request_id in request_ids:
        await taker.take(request_id, peer)
    assert await taker.tell_held(request_ids) == []
    assert await peer.tell_held(request_ids) == request_ids


async def test_what_users_get_is_told_of_who_has_it(bus: Bus, front: Front, peer: Peer, taker: Peer) -> None:
    told: asyncio.Queue[OnlineServed] = asyncio.Queue()
    await bus.subscribe(subjects.ONLINE_SERVED, OnlineServed, told.put)
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await peer.send(request_id, [5], so_far=1)
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    await taker.send(request_id, [6], so_far=2)
    await front.until(lambda: len(generation.output_token_ids) == 2)
    by_executor: dict[str, OnlineServed] = {}
    while len(by_executor) < 2:
        served = await asyncio.wait_for(told.get(), 10)
        by_executor[served.executor_id] = served
    relaxed, strict = by_executor["executor-0"], by_executor["executor-1"]
    assert (relaxed.num_started, relaxed.latencies.ttft_ms.num_samples, relaxed.oldest_open_s) == (1, 1, None)
    assert (strict.num_started, strict.latencies.tbt_ms.num_samples) == (0, 1)
    assert strict.oldest_open_s == generation.arrival_s


# Who gets new requests


def prompts(front: Front) -> list[str]:
    return [each.info.executor_id for each in front.registry.for_prompts()]


async def test_requests_begin_where_prompts_are_computed(bus: Bus, front: Front, peer: Peer, taker: Peer) -> None:
    assert prompts(front) == ["executor-0"]
    mixed = await alive(Peer(bus, "executor-2"), front)
    assert prompts(front) == ["executor-0", "executor-2"]
    receivers = {route.target.executor_id for number in range(6) if (route := front.router.route([number]))}
    assert receivers == {"executor-0", "executor-2"}
    for each in (peer, mixed):
        await each.beat(draining=True)
    await front.until(lambda: prompts(front) == ["executor-1"])
    route = front.router.route([9])
    assert route is not None and route.target.executor_id == "executor-1"


async def test_a_role_that_changes_is_heeded_at_once(front: Front, peer: Peer, taker: Peer) -> None:
    taker.role = Role.MIXED
    await taker.beat()
    await front.until(lambda: prompts(front) == ["executor-0", "executor-1"])
    for each in (peer, taker):
        each.role = Role.STRICT
        await each.beat()
    await front.until(lambda: all(each.info.role is Role.STRICT for each in front.registry.live()))
    assert prompts(front) == ["executor-0", "executor-1"]  # as mixed: nobody else is there


async def test_who_can_give_and_take_nothing_is_in_no_pool(front: Front, peer: Peer, taker: Peer) -> None:
    taker.kv_link = ""
    await taker.beat()
    await front.until(lambda: prompts(front) == ["executor-0", "executor-1"])


async def test_what_is_resumed_begins_anew_where_prompts_are_computed(front: Front, peer: Peer, taker: Peer) -> None:
    generation = await front.submit()
    request_id = (await peer.next_request()).request_id
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    await taker.beat(reconnects=1)
    assert await taker.next_abort() == [request_id]
    assert (await peer.next_request()).is_resumed


# Many at a time


@dataclass
class Automaton:
    """An executor of which all is known: it gives what it runs to others, loses messages, and dies."""

    peer: Peer
    random: Random
    running: dict[str, int] = field(default_factory=dict)  # with the length of each output

    async def act(self, others: "list[Automaton]") -> None:
        while not self.peer.inbox.empty():
            message = self.peer.inbox.get_nowait()
            if isinstance(message, GenerateRequest):
                self.running[message.request_id] = len(message.output_token_ids)
            else:
                for request_id in message.request_ids:
                    self.running.pop(request_id, None)
        for request_id in list(self.running):
            if self.running[request_id] > 0 and self.random.random() < 0.15:
                await self.give(request_id, self.random.choice(others))
            elif self.random.random() < 0.5:
                await self.generate(request_id)
        if self.random.random() < 0.01:
            self.running.clear()
            self.peer.epoch += "'"
        if self.random.random() < 0.2:
            for request_id in await self.peer.tell_held(list(self.running)):
                self.running.pop(request_id, None)
        await self.peer.beat()

    async def generate(self, request_id: str) -> None:
        """The token at each position of an output is its position."""
        position = self.running[request_id]
        self.running[request_id] += 1
        finish = FinishReason.LENGTH if position + 1 == LENGTH else None
        if finish is not None:
            del self.running[request_id]
        if self.random.random() > 0.01:
            await self.peer.send(request_id, [position], finish, so_far=position + 1)

    async def give(self, request_id: str, taker: "Automaton") -> None:
        """Now and then the giver goes on as well, since it takes the taker for dead."""
        taker.running[request_id] = self.running[request_id]
        if self.random.random() > 0.1:
            del self.running[request_id]
        if self.random.random() > 0.05:
            await taker.peer.take(request_id, self.peer)


LENGTH = 12


@pytest.mark.parametrize("seed", range(3))
async def test_every_stream_is_whole_whatever_moves_dies_or_is_lost(bus: Bus, front: Front, seed: int) -> None:
    random = Random(seed)
    peers = [await alive(Peer(bus, f"executor-{number}"), front) for number in range(3)]
    automata = [Automaton(each, random) for each in peers]
    request = replace(REQUEST, sampling=SamplingParams(max_tokens=LENGTH))
    generations = [await front.submit(request) for _ in range(12)]
    for turn in itertools.count():
        for each in automata:
            await each.act([other for other in automata if other is not each])
        if all(generation.finish_reason is not None for generation in generations):
            break
        assert turn < 2000
    for generation in generations:
        if generation.finish_reason is FinishReason.LENGTH:
            assert generation.output_token_ids == list(range(LENGTH))
        else:  # too many executors died with it
            assert generation.finish_reason is FinishReason.ERROR and "given up" in generation.error
    assert sum(generation.finish_reason is FinishReason.LENGTH for generation in generations) >= 6
    assert front.tracker.num_live == 0


# Flex


@dataclass
class FlexFront:
    """The gateway's side, with the offline-queue's answers."""

    tracker: FlexTracker
    submitted: asyncio.Queue[FlexSubmit]
    dropped: asyncio.Queue[AbortRequests]


FLEX_GATEWAY = "gateway-flex"
WORK = subjects.of_model("model")


@pytest.fixture
async def flex(bus: Bus, front: Front) -> AsyncIterator[FlexFront]:
    with made_metrics() as metrics:
        tracker = FlexTracker(bus, WORK, front.registry, FLEX_GATEWAY, SystemClock(), metrics)
        made = FlexFront(tracker, asyncio.Queue(), asyncio.Queue())

        async def answer(message: FlexMessage) -> FlexAnswer:
            if isinstance(message, FlexSubmit):
                made.submitted.put_nowait(message)
            return FlexAnswer()

        await bus.serve(WORK.flex, FlexMessage, answer)
        await bus.subscribe(WORK.flex_drop, AbortRequests, made.dropped.put)
        await tracker.start()
        running = asyncio.create_task(tracker.run())
        yield made
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("num_told", [0, 1])
async def test_flex_requests_move(front: Front, peer: Peer, taker: Peer, flex: FlexFront, num_told: int) -> None:
    """Whether anything was heard of where they are or not."""
    generation = await flex.tracker.submit(REQUEST, Sender("client"))
    request_id = (await flex.submitted.get()).request.request_id
    peer.gateway_id = taker.gateway_id = FLEX_GATEWAY
    if num_told:
        await peer.send(request_id, [5], so_far=1)
        assert await generation.next_tokens() == [5]
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    if not num_told:
        await peer.send(request_id, [5], so_far=1)
    assert await peer.tell_held([request_id]) == [request_id]
    await peer.send(request_id, [], FinishReason.ABORT, so_far=1)  # as it is told
    await taker.send(request_id, [6], so_far=2)
    await taker.send(request_id, [7], FinishReason.LENGTH, so_far=3)
    await generation.finished()
    assert (generation.output_token_ids, generation.attempt) == ([5, 6, 7], 1)
    assert flex.submitted.empty()


async def test_a_taker_of_a_flex_request_that_dies(front: Front, peer: Peer, taker: Peer, flex: FlexFront) -> None:
    generation = await flex.tracker.submit(REQUEST, Sender("client"))
    request_id = (await flex.submitted.get()).request.request_id
    peer.gateway_id = FLEX_GATEWAY
    await peer.send(request_id, [5], so_far=1)
    await taker.take(request_id, peer)
    await front.until(lambda: generation.executor_id == "executor-1")
    taker.epoch = "epoch-2"
    await taker.beat()
    again = await asyncio.wait_for(flex.submitted.get(), 10)
    assert (again.replaces, again.request.output_token_ids, again.num_executors_lost) == (request_id, [5], 1)


@pytest.mark.parametrize("num_tokens", [TRIAL_TOKENS, TRIAL_TOKENS - 1])
async def test_a_flex_request_that_gets_on_outlives_any_number_of_executors(
    front: Front, peer: Peer, flex: FlexFront, num_tokens: int
) -> None:
    """One that gets on too little in each of them is given up."""
    generation = await flex.tracker.submit(REQUEST, Sender("client"))
    peer.gateway_id = FLEX_GATEWAY
    gets_on = num_tokens == TRIAL_TOKENS
    for number in range(1, MAX_CRASHES + (2 if gets_on else 1)):
        submitted = await asyncio.wait_for(flex.submitted.get(), 10)
        assert submitted.num_executors_lost == (min(1, number - 1) if gets_on else number - 1)
        await peer.send(submitted.request.request_id, [5] * num_tokens, so_far=num_tokens * number)
        await front.until(lambda so_far=num_tokens * number: len(generation.output_token_ids) == so_far)
        peer.epoch = f"epoch-{number + 1}"
        await peer.beat()
    if gets_on:
        await asyncio.wait_for(flex.submitted.get(), 10)
        assert generation.finish_reason is None
    else:
        await asyncio.wait_for(generation.finished(), 10)
        assert f"{MAX_CRASHES} executors died while they had it" in generation.error
