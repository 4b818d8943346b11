"""The router over a real bus: executors' heartbeats, the predictor's models and what was sent since."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from shared.bus import Bus
from shared.errors import NoExecutorError
from shared.openai.completions.requests import CompletionRequest
from shared.protocol import subjects
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason
from shared.scheduling.kv.block_hash import KVScope, hash_chain
from shared.scheduling.kv.prefix_cache import BlockChanges, CacheChanges
from shared.scheduling.placement.prompt import Prompt
from tests.services.gateway.live.test_tracker import REQUEST, Front, Peer, alive, front, load, peer

__all__ = ["front", "peer"]

MODEL = LatencyModelRecord("key", LinearCoefficients((10.0, 0.5, 0.0, 0.0, 0.0, 0.5, 1.0, 0.0)), 9, 0.0, 0.0)
PREFIX = list(range(200, 520))
BLOCKS = hash_chain(PREFIX, 16)


@pytest.fixture
async def other(bus: Bus, front: Front, peer: Peer) -> AsyncIterator[Peer]:
    """A second executor; both have the same latency model."""
    models = await bus.bucket(subjects.LATENCY_MODELS_BUCKET, LatencyModelRecord)
    await models.put("key", MODEL)
    second = await alive(Peer(bus, "executor-1"), front)
    await front.until(lambda: front.router.load_ms(front.registry.live()[0]) > 0)
    yield second


def with_prompt(*token_ids: int) -> CompletionRequest:
    return replace(REQUEST, prompt_token_ids=list(token_ids))


async def test_the_least_loaded_executor_is_picked(front: Front, peer: Peer, other: Peer) -> None:
    await peer.beat(online_running=2)
    await front.until(lambda: load(front, "executor-0") == 2)
    routes = [front.router.route([number]) for number in range(5)]
    assert [route.target.executor_id[-1] for route in routes if route] == ["1", "1", "0", "1", "0"]
    await other.beat(draining=True)
    await front.until(lambda: len(front.registry.available()) == 1)
    last = front.router.route([9])
    assert last is not None and last.target.executor_id == "executor-0"


async def test_a_prefix_goes_where_it_was_and_elsewhere_under_load(front: Front, peer: Peer, other: Peer) -> None:
    await front.submit(with_prompt(*PREFIX, 1))
    assert (await peer.next_request()).prompt_token_ids[-1] == 1
    await front.submit(with_prompt(*range(600, 700)))
    assert (await other.next_request()).prompt_token_ids[0] == 600
    await other.beat(online_running=1)
    await front.submit(with_prompt(*PREFIX, 2))
    assert (await peer.next_request()).prompt_token_ids[-1] == 2
    await peer.beat(online_running=40)
    await front.until(lambda: load(front, "executor-0") == 42)  # 40 of others, and the two prompts
    await front.submit(with_prompt(*PREFIX, 3))
    assert (await other.next_request()).prompt_token_ids[-1] == 3


async def test_a_request_goes_where_its_adapter_is_whatever_is_to_be_done_there(
    front: Front, peer: Peer, other: Peer
) -> None:
    other.adapters = ("sql",)
    await other.beat(online_running=40)
    await front.until(lambda: load(front, "executor-1") == 40)
    asked = with_prompt(*PREFIX)
    await front.submit(replace(asked, sampling=replace(asked.sampling, adapter="sql")))
    assert (await other.next_request()).sampling.adapter == "sql"
    await front.submit(asked)
    assert (await peer.next_request()).sampling.adapter == "", "what the other has of the prompt is another KV"
    why = "no executor of m that takes requests has the adapter 'chat'; waited 0.1 s"
    with pytest.raises(NoExecutorError, match=why):
        await front.router.route_within(PREFIX, 0.1, KVScope(None, "chat"))


async def test_one_that_lost_its_executor_waits_for_its_adapter_and_holds_up_nobody(
    front: Front, peer: Peer, other: Peer
) -> None:
    other.adapters = ("sql",)
    await other.beat()
    await front.until(lambda: bool(front.registry.for_prompts("sql")))
    asked = with_prompt(*PREFIX)
    await front.submit(replace(asked, sampling=replace(asked.sampling, adapter="sql")))
    sent = await other.next_request()
    await other.send(sent.request_id, [5])
    await front.submit(asked)
    plain = await peer.next_request()
    await other.beat(reconnects=1, draining=True)
    await peer.send(plain.request_id, [], FinishReason.ABORT)
    assert (await _resumed(peer)).sampling.adapter == "", "the one behind it goes on"
    assert not front.registry.for_prompts("sql")
    await other.beat(reconnects=1)
    resumed = await _resumed(other)
    assert (resumed.sampling.adapter, resumed.output_token_ids) == ("sql", [5])
    assert peer.inbox.empty()


async def test_a_request_counts_where_it_is_from_its_submission_to_its_end(
    front: Front, peer: Peer, other: Peer
) -> None:
    generation = await front.submit(with_prompt(*PREFIX))
    assert load(front, "executor-0") == 1
    first = await peer.next_request()
    await peer.send(first.request_id, [5])
    await peer.send(first.request_id, [], FinishReason.ABORT)
    await peer.next_abort()
    receiver = await asyncio.wait_for(_either(peer, other), 10)
    assert load(front, "executor-0") + load(front, "executor-1") == 1
    await front.tracker.close(generation)
    assert load(front, "executor-0") == load(front, "executor-1") == 0
    assert receiver.inbox.empty()


async def _resumed(peer: Peer) -> GenerateRequest:
    """What comes to it next that is no abort."""
    while not isinstance(message := await asyncio.wait_for(peer.inbox.get(), 10), GenerateRequest):
        pass
    return message


async def _either(*peers: Peer) -> Peer:
    """Who gets the next request."""
    waiting = {asyncio.create_task(each.next_request()): each for each in peers}
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return waiting[done.pop()]


def num_cached(front: Front) -> list[int]:
    """Tokens of PREFIX and one more that each executor should have."""
    return [each.target.num_cached_tokens(Prompt([*PREFIX, 1])) for each in front.registry.live()]


async def test_executors_say_what_they_have(bus: Bus, front: Front, peer: Peer, other: Peer) -> None:
    await other.change_cache(CacheChanges(1, False, (BlockChanges(held=b"".join(BLOCKS[:4])),)))
    await front.until(lambda: num_cached(front) == [0, 64])
    await other.change_cache(CacheChanges(2, False, (BlockChanges(free=b"".join(BLOCKS[4:])),)))
    await front.until(lambda: num_cached(front) == [0, len(PREFIX)])
    route = front.router.route([*PREFIX, 1])
    assert route is not None and (route.target.executor_id, route.num_cached_tokens) == ("executor-1", len(PREFIX))
    await other.change_cache(CacheChanges(3, False, (BlockChanges(gone=b"".join(BLOCKS[1:])),)))
    route.end()
    await front.until(lambda: num_cached(front) == [0, 16])


async def test_who_was_there_before_or_of_whom_something_was_lost_is_asked(
    bus: Bus, front: Front, peer: Peer, other: Peer
) -> None:
    early = Peer(bus, "executor-2", cache=CacheChanges(57, True, (BlockChanges(free=b"".join(BLOCKS[:3])),)))
    await alive(early, front)
    await front.until(lambda: num_cached(front) == [0, 0, 48])
    early.cache = CacheChanges(60, True, (BlockChanges(free=b"".join(BLOCKS[:7])),))
    await early.change_cache(CacheChanges(60))
    await front.until(lambda: num_cached(front) == [0, 0, 112])


async def test_a_new_incarnation_is_expected_to_hold_no_prefix(front: Front, peer: Peer, other: Peer) -> None:
    await peer.change_cache(CacheChanges(1, False, (BlockChanges(free=b"".join(BLOCKS)),)))
    await front.until(lambda: num_cached(front) == [len(PREFIX), 0])
    peer.epoch = "epoch-2"
    await peer.beat()
    await front.until(lambda: any(each.info.epoch == "epoch-2" for each in front.registry.live()))
    assert num_cached(front) == [0, 0]


async def test_the_longer_answers_are_the_more_decoding_is_expected(front: Front, peer: Peer, other: Peer) -> None:
    executor = front.registry.live()[0]
    before = front.router.load_ms(executor)
    for _ in range(10):
        front.router.lengths.add(2000)
    assert front.router.load_ms(executor) > 10 * before
