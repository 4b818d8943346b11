"""Many requests that are sent, stopped or sent again at a time, many tokens that were not read: streams go on
meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from services.gateway.access.rate_limits import Reservation
from services.gateway.live.choices import NUM_AT_ONCE, Choices
from services.gateway.live.generation import MOST_AT_ONCE, OnlineGeneration, Sender
from shared.protocol.requests import AbortRequests, GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.tokens import TokenLogprobs, TokenOutput
from tests.services.gateway.live.test_tracker import REQUEST, Front, Peer, alive, front, peer
from tests.shared.text.test_tokenizer import BYTE_LEVEL

__all__ = ["front", "peer"]

NUM = 4 * NUM_AT_ONCE
NOBODY: Any = None


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


@pytest.mark.parametrize("num_turns", [1, 2, 3])
async def test_one_that_is_stopped_while_its_choices_are_sent_owes_nothing(
    front: Front, peer: Peer, num_turns: int
) -> None:
    request = replace(REQUEST, other_prompts=[REQUEST.prompt_token_ids] * (NUM - 1))
    reservation = Reservation(None, 0)
    sending = asyncio.ensure_future(Choices.submit(front.tracker, request, Sender("client"), reservation))
    for _ in range(num_turns):
        await asyncio.sleep(0)
    assert 0 < front.tracker.num_live < NUM
    sending.cancel()
    await asyncio.wait((sending,))
    assert sending.cancelled() and (front.tracker.num_live, reservation.num_running) == (0, 0)


async def test_others_have_their_turn_while_many_requests_are_sent_again(front: Front, peer: Peer) -> None:
    generations = [await front.submit() for _ in range(NUM)]
    second = await alive(Peer(peer.bus, "executor-1"), front)
    (lost,) = [each.info for each in front.registry.live() if each.info.executor_id == peer.executor_id]
    front.registry.lose(lost)

    def num_sent() -> int:
        return sum(each.attempt == 2 for each in generations)

    assert await most_at_once(front.until(lambda: num_sent() == NUM), num_sent) == 1
    assert len([await second.next_request() for _ in range(NUM)]) == NUM


@pytest.mark.parametrize("num_tokens", [0, 1, MOST_AT_ONCE, 2 * MOST_AT_ONCE, 2 * MOST_AT_ONCE + 1])
async def test_what_was_not_read_comes_in_parts_and_its_end_with_the_last(num_tokens: int) -> None:
    sampling = SamplingParams(max_tokens=num_tokens, seed=1, logprobs=0)
    generation = OnlineGeneration("r0", replace(REQUEST, sampling=sampling), Sender(""), 0.0, 0.0)
    tokens = BYTE_LEVEL.encode("ab" * num_tokens)[:num_tokens]
    logprobs = [TokenLogprobs(-float(place), [], []) for place in range(num_tokens)]
    generation.take(TokenOutput("r0-1", tokens, FinishReason.LENGTH, logprobs=logprobs))
    pieces = [piece async for piece in Choices(NOBODY, [generation]).pieces(BYTE_LEVEL)]
    parts = [len(piece.tokens) for piece in pieces]
    assert parts == [MOST_AT_ONCE] * (len(parts) - 1) + [num_tokens - MOST_AT_ONCE * (len(parts) - 1)]
    assert len(parts) == max(1, -(-num_tokens // MOST_AT_ONCE))
    assert [piece.finish_reason for piece in pieces] == [None] * (len(parts) - 1) + [FinishReason.LENGTH]
    assert "".join(piece.text for piece in pieces) == BYTE_LEVEL.decode(tokens)
    assert [token.logprobs for piece in pieces for token in piece.tokens] == logprobs


async def test_others_have_their_turn_while_much_is_read() -> None:
    generation = OnlineGeneration("r0", REQUEST, Sender(""), 0.0, 0.0)
    generation.take(TokenOutput("r0-1", [7] * 9 * MOST_AT_ONCE, FinishReason.LENGTH))

    async def read() -> None:
        while not generation.is_read:
            await generation.next_tokens()

    assert await most_at_once(read(), lambda: generation.num_read) == MOST_AT_ONCE
