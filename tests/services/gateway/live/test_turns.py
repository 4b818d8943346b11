"""Many requests that are sent, stopped or sent again at a time: streams go on meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from msgspec.structs import replace

from services.gateway.access.rate_limits import Reservation
from services.gateway.live.choices import NUM_AT_ONCE, Choices
from services.gateway.live.generation import Sender
from shared.protocol.requests import AbortRequests, GenerateRequest
from tests.services.gateway.live.test_tracker import REQUEST, Front, Peer, alive, front, peer

__all__ = ["front", "peer"]

NUM = 4 * NUM_AT_ONCE


async def most_at_once(work: Awaitable[object], num_done: Callable[[], int]) -> int:
    """Of what it does, how much without a turn for anybody else."""
    counts, working = [num_done()], asyncio.ensure_future(work)
    while not working.done():
        await asyncio.sleep(0)
        counts.append(num_done())
    await working
    return max(after - before for before, after in pairwise(counts))


async def test_others_have_their_turn_while_many_choices_are_sent_and_stopped(front: Front, peer: Peer) -> None:
    request = replace(REQUEST, other_prompts=[REQUEST.prompt_token_ids] * (NUM - 1))
    sending = asyncio.ensure_future(Choices.submit(front.tracker, request, Sender("client"), Reservation(None, 0)))
    assert await most_at_once(sending, lambda: front.tracker.num_live) <= NUM_AT_ONCE
    choices = sending.result()
    assert len(choices.generations) == front.tracker.num_live == NUM
    assert await most_at_once(choices.aclose(), lambda: NUM - front.tracker.num_live) <= NUM_AT_ONCE
    messages = [await asyncio.wait_for(peer.inbox.get(), 10) for _ in range(2 * NUM)]
    kinds = [type(message) for message in messages]
    assert (kinds.count(GenerateRequest), kinds.count(AbortRequests), front.tracker.num_live) == (NUM, NUM, 0)


async def test_others_have_their_turn_while_many_requests_are_sent_again(front: Front, peer: Peer) -> None:
    generations = [await front.submit() for _ in range(NUM)]
    second = await alive(Peer(peer.bus, "executor-1"), front)
    (lost,) = [each.info for each in front.registry.live() if each.info.executor_id == peer.executor_id]
    front.registry.lose(lost)

    def num_sent() -> int:
        return sum(each.attempt == 2 for each in generations)

    assert await most_at_once(front.until(lambda: num_sent() == NUM), num_sent) == 1
    assert len([await second.next_request() for _ in range(NUM)]) == NUM
