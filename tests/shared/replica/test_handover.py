"""Requests that move between replicas with their KV: whatever moves when, outputs are those of one replica."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shared.protocol.handover import Carried
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.replica.handover import Reserved
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.shared.replica.test_look_ahead import ANY, SPEC, Overlapped, alone, make_request

NUM_REPLICAS = 3


@dataclass
class Move:
    """One that is under way."""

    carried: Carried
    giver: int
    taker: int
    reserved: Reserved | None = None
    num_read: int = 0

    @property
    def request_id(self) -> str:
        return self.carried.request.request_id


@dataclass
class Cluster:
    """Replicas that hand requests over, a block at a time beside their steps."""

    tokenizer: Tokenizer
    rng: random.Random
    rigs: list[Overlapped] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    num_moved: int = 0
    num_refused: int = 0
    aborted: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index in range(NUM_REPLICAS):
            engine = FollowingEngine(SPEC, interrupt=0.1, seed=index)
            self.rigs.append(Overlapped(self.tokenizer, self.rng, engine))

    @property
    def has_work(self) -> bool:
        return bool(self.moves) or any(rig.replica.has_work or rig.running is not None for rig in self.rigs)

    @property
    def outcomes(self) -> dict[str, object]:
        ended = [request_id for rig in self.rigs for request_id in rig.outcomes]
        assert len(ended) == len(set(ended)), "ended at two places"
        return {request_id: each for rig in self.rigs for request_id, each in rig.outcomes.items()}

    def collect(self, giver: int) -> None:
        for carried in self.rigs[giver].replica.handovers.collect():
            taker = self.rng.choice([index for index in range(NUM_REPLICAS) if index != giver])
            self.moves.append(Move(carried, giver, taker))

    def go_on(self, move: Move) -> None:
        """A part of it."""
        giver, taker = self.rigs[move.giver], self.rigs[move.taker]
        if move.reserved is None:
            reserved = taker.replica.handovers.reserve(move.carried)
            if isinstance(reserved, str):
                self.num_refused += 1
                self.end(move, is_taken=False)
            else:
                move.reserved = reserved
        elif move.num_read < len(move.reserved.pairs):
            theirs, own = move.reserved.pairs[move.num_read]
            move.num_read += 1
            for offset in range(SPEC.block_size):
                slot = giver.engine.slots.get(theirs * SPEC.block_size + offset)
                if slot is not None:
                    taker.engine.slots[own * SPEC.block_size + offset] = slot
        else:
            self.end(move, is_taken=self.rng.random() < 0.85)
        taker.check()

    def end(self, move: Move, is_taken: bool) -> None:
        self.moves.remove(move)
        giver, taker = self.rigs[move.giver].replica.handovers, self.rigs[move.taker].replica.handovers
        if is_taken:
            taker.take(move.request_id)
            giver.gave(move.request_id)
            self.num_moved += 1
            if move.request_id in self.aborted:
                self.rigs[move.taker].replica.abort([move.request_id])
        else:
            taker.drop(move.request_id)
            giver.release(move.request_id)
        self.rigs[move.giver].check()
        self.rigs[move.taker].check()

    def abort(self, giver: int) -> None:
        """One that is there; its next place hears of it, too."""
        held = [request.request_id for request in self.rigs[giver].replica.table]
        chosen = self.rng.sample(held, min(1, len(held)))
        self.aborted |= dict.fromkeys(chosen)
        self.rigs[giver].replica.abort(chosen)


def run(cluster: Cluster, requests: list[GenerateRequest], abort: float = 0.0) -> None:
    rng, waiting = cluster.rng, list(requests)
    while waiting or cluster.has_work:
        index = rng.randrange(NUM_REPLICAS)
        rig, what = cluster.rigs[index], rng.random()
        if rng.random() < 0.2:
            rig.replica.handovers.push_again()
        if waiting and what < 0.15:
            rig.take_back()
            rig.replica.submit(waiting.pop())
        elif cluster.moves and what < 0.5:
            cluster.go_on(rng.choice(cluster.moves))
        elif what < 0.6:
            decoding = [request_id for request_id, _ in rig.replica.handovers.decoding(rng.choice(list(Kind)))]
            rig.replica.handovers.ask(rng.sample(decoding, min(len(decoding), 2)))
        elif what >= 1.0 - abort:
            cluster.abort(index)
        elif rig.running is not None:
            rig.look_ahead(ANY)
            rig.finish(early=rng.random() < 0.3)
            cluster.collect(index)
        else:
            cluster.collect(index)
            rig.begin(ANY, rig.random_plan())
    for rig in cluster.rigs:
        rig.take_ended()
        assert rig.replica.pool.num_free == rig.replica.limits.num_blocks


@pytest.mark.parametrize("pushes", [(), (Kind.ONLINE,), tuple(Kind)], ids=["asked", "online pushed", "all pushed"])
@pytest.mark.parametrize("seed", range(5))
def test_outputs_are_those_of_one_replica(tokenizer: Tokenizer, seed: int, pushes: tuple[Kind, ...]) -> None:
    """With few blocks, shared prefixes, preemption, interruption, aborts, steps ahead, refusals and failed reads."""
    rng = random.Random(seed)
    requests = [make_request(f"{seed}-{n}", rng) for n in range(40)]
    cluster = Cluster(tokenizer, rng)
    for rig in cluster.rigs[:2]:
        rig.replica.handovers.pushes = pushes
    run(cluster, requests, abort=0.004)
    outcomes, expected = cluster.outcomes, alone(tokenizer, requests)
    assert set(outcomes) == set(expected)
    aborted = {key for key, each in outcomes.items() if each[1] is FinishReason.ABORT}
    assert {key: each for key, each in outcomes.items() if key not in aborted} == {
        key: each for key, each in expected.items() if key not in aborted
    }
    assert len(aborted) < 20 and cluster.num_moved > 10
    totals = [rig.replica.totals for rig in cluster.rigs]
    assert sum(each.handed_over for each in totals) == sum(each.taken_over for each in totals) == cluster.num_moved


def request_of(request_id: str, kind: Kind, prompt: int = 40, first: int = 5, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**({"max_tokens": 8, "seed": 3, "ignore_eos": True} | sampling))  # type: ignore[arg-type]
    gateway_id = "gateway" if kind is Kind.ONLINE else ""
    return GenerateRequest(request_id, kind, list(range(first, first + prompt)), params, 0.0, gateway_id)


def make_rig(
    tokenizer: Tokenizer, num_blocks: int = 40, strategy: Strategy = Strategy(), adapters: tuple[str, ...] = ()
) -> Overlapped:
    engine = FollowingEngine(replace(SPEC, num_blocks=num_blocks, adapters=adapters))
    return Overlapped(tokenizer, random.Random(0), engine, strategy=strategy)


def held_at(rig: Overlapped, *requests: GenerateRequest) -> list[Carried]:
    """Once they decode."""
    for request in requests:
        rig.replica.submit(request)
    rig.replica.handovers.pushes = tuple(Kind)
    held: list[Carried] = []
    while len(held) < len(requests):
        assert rig.begin()
        rig.finish()
        held += rig.replica.handovers.collect()
    return held


def test_a_held_request_does_not_run_and_keeps_its_blocks(tokenizer: Tokenizer) -> None:
    giver = make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    assert carried.num_computed_tokens == 40 and len(carried.block_ids) == 3 and carried.request.is_resumed
    assert not giver.begin() and giver.replica.pool.num_free == 37
    (told,) = giver.replica.tell()
    assert told.is_held and told.is_in_flight
    giver.replica.handovers.release("a")
    assert giver.replica.handovers.collect() == [], "it was refused once"
    assert giver.begin()
    giver.finish()
    giver.replica.handovers.push_again()
    assert [each.request.request_id for each in giver.replica.handovers.collect()] == ["a"]


def test_of_who_has_left_nothing_is_remembered(tokenizer: Tokenizer) -> None:
    """That it was asked for, or that nobody took it: who comes by the same id is another."""
    giver = make_rig(tokenizer)
    held_at(giver, request_of("a", Kind.ONLINE))
    giver.replica.handovers.release("a")
    giver.replica.abort(["a"])
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE, first=700))
    assert carried.request.prompt_token_ids[0] == 700
    giver.replica.handovers.gave("a")
    giver.replica.handovers.pushes = ()
    giver.replica.submit(request_of("b", Kind.ONLINE))
    giver.replica.handovers.ask(["b"])
    giver.replica.abort(["b"])
    assert not giver.replica.handovers.is_giving


@pytest.mark.parametrize("kind", list(Kind))
def test_a_prompt_with_a_token_left_stays_until_its_first_token(tokenizer: Tokenizer, kind: Kind) -> None:
    """It looks like a decode: one token over KV that is there."""
    giver = make_rig(tokenizer)
    giver.replica.submit(request_of("a", kind, prompt=giver.replica.limits.max_num_batched_tokens + 1))
    giver.replica.handovers.pushes = tuple(Kind)
    assert giver.begin()
    giver.finish()
    assert giver.replica.table.running(kind)["a"].is_decode
    assert giver.replica.handovers.collect() == [] and giver.replica.handovers.decoding(kind) == []
    assert giver.begin()
    giver.finish()
    (carried,) = giver.replica.handovers.collect()
    assert carried.num_computed_tokens == 65 and len(carried.request.output_token_ids) == 1


def test_what_is_aborted_while_it_is_held_ends_when_that_is_over(tokenizer: Tokenizer) -> None:
    for is_taken in (False, True):
        giver = make_rig(tokenizer)
        held_at(giver, request_of("a", Kind.ONLINE))
        giver.replica.abort(["a"])
        assert giver.replica.pool.num_free == 37, "somebody reads them"
        if is_taken:
            giver.replica.handovers.gave("a")
        else:
            giver.replica.handovers.release("a")
        assert giver.replica.pool.num_free == 40 and not giver.replica.has_work
        reasons = [each.finish_reason for each in giver.replica.take_ended()]
        assert reasons == ([] if is_taken else [FinishReason.ABORT])
        giver.replica.submit(request_of("a", Kind.ONLINE))
        giver.drain()
        assert giver.outcomes["a"][1] is FinishReason.LENGTH, "it is another by the same id"


def test_who_is_in_a_step_is_held_after_it_and_who_is_not_here_not_at_all(tokenizer: Tokenizer) -> None:
    giver = make_rig(tokenizer)
    giver.replica.submit(request_of("a", Kind.ONLINE))
    giver.begin()
    giver.finish()
    giver.begin()
    giver.replica.handovers.ask(["a", "nobody"])
    assert giver.replica.handovers.collect() == [] and giver.replica.handovers.is_giving
    giver.finish()
    assert [each.request.request_id for each in giver.replica.handovers.collect()] == ["a"]
    assert not giver.replica.handovers.is_giving
    giver.replica.handovers.gave("nobody")
    giver.replica.handovers.release("nobody")
    assert giver.replica.totals.handed_over == 0


def test_with_a_request_goes_all_that_it_has_gained(tokenizer: Tokenizer) -> None:
    """The choices before, and what nobody was told of yet. So where it moves on, it is carried as it was."""
    rigs = [make_rig(tokenizer) for _ in range(3)]
    request = request_of("a", Kind.OFFLINE, n=3, max_tokens=4, logprobs=1)
    rigs[0].replica.submit(request)
    for _ in range(7):
        assert rigs[0].begin()
        rigs[0].finish()
    seen = []
    for giver, taker in pairwise(rigs):
        giver.replica.handovers.ask(["a"])
        (carried,) = giver.replica.handovers.collect()
        seen.append(replace(carried, block_ids=[]))
        reserved = taker.replica.handovers.reserve(carried)
        assert isinstance(reserved, Reserved)
        for theirs, own in reserved.pairs:
            for offset in range(SPEC.block_size):
                slot = giver.engine.slots.get(theirs * SPEC.block_size + offset)
                if slot is not None:
                    taker.engine.slots[own * SPEC.block_size + offset] = slot
        assert taker.replica.handovers.take("a").request_id == "a"
        giver.replica.handovers.gave("a")
    assert seen[0] == seen[1] and len(seen[0].ended_choices) == 1
    assert len(seen[0].unpublished) == len(seen[0].logprobs) == len(seen[0].request.output_token_ids) > 0
    rigs[2].drain()
    assert rigs[2].outcomes == alone(tokenizer, [request])


def test_output_of_no_vocabulary_is_taken_as_it_is(tokenizer: Tokenizer) -> None:
    """In a simulation nobody looks it up."""
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    odd = replace(carried, request=replace(carried.request, output_token_ids=[10**6]))
    assert isinstance(taker.replica.handovers.reserve(odd), Reserved)


def test_what_fills_its_blocks_to_the_last_token_is_taken(tokenizer: Tokenizer) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE, prompt=48))
    assert carried.num_computed_tokens == 16 * len(carried.block_ids)
    assert isinstance(taker.replica.handovers.reserve(carried), Reserved)


def test_what_the_taker_has_cached_is_not_read(tokenizer: Tokenizer) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    taker.replica.submit(request_of("before", Kind.OFFLINE))
    taker.drain()
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    reserved = taker.replica.handovers.reserve(carried)
    assert isinstance(reserved, Reserved) and [theirs for theirs, _ in reserved.pairs] == carried.block_ids[2:]


def test_online_requests_take_the_room_of_offline_ones_and_offline_ones_that_of_nobody(tokenizer: Tokenizer) -> None:
    for kind in Kind:
        giver, taker = make_rig(tokenizer), make_rig(tokenizer, num_blocks=5)
        (carried,) = held_at(giver, request_of("a", kind))
        taker.replica.submit(request_of("b", Kind.OFFLINE, first=600))
        taker.begin()
        taker.finish()
        reserved = taker.replica.handovers.reserve(carried)
        if kind is Kind.ONLINE:
            assert isinstance(reserved, Reserved) and taker.replica.totals.preemptions == 1
        else:
            assert reserved == "2 blocks are free, and it has 3"
        taker.replica.handovers.drop("a")
        taker.drain()
        assert list(taker.outcomes) == ["b"]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("num_reserved", [3, 4])
def test_an_offline_request_that_comes_leaves_the_reserve(tokenizer: Tokenizer, kind: Kind, num_reserved: int) -> None:
    """Online requests held so many blocks before. Ten are there, one that runs has 3 and may need one more, and 3 are
    to be taken."""
    giver, taker = make_rig(tokenizer), make_rig(tokenizer, 10, Strategy(kv_reserve="burst"))
    for now_s in (0.0, 1.0):
        taker.replica._reserve.observe(now_s, num_reserved)
    (carried,) = held_at(giver, request_of("a", kind))
    taker.replica.submit(request_of("b", Kind.OFFLINE, first=600))
    taker.begin()
    taker.finish()
    assert (taker.replica.num_reserved_blocks, taker.replica.pool.num_free) == (num_reserved, 7)
    reserved = taker.replica.handovers.reserve(carried)
    if kind is Kind.ONLINE or num_reserved == 3:
        assert isinstance(reserved, Reserved)
    else:
        assert reserved == "7 blocks are free, of which 4 are kept for online requests, and it has 3"


def test_blocks_that_wait_for_an_offline_request_are_nobodys_to_take(tokenizer: Tokenizer) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer, num_blocks=5)
    (carried,) = held_at(giver, request_of("a", Kind.OFFLINE))
    assert isinstance(taker.replica.handovers.reserve(carried), Reserved)
    taker.replica.submit(request_of("b", Kind.ONLINE, first=600))
    assert not taker.begin(), "three of the five are to be written"
    taker.replica.handovers.drop("a")
    taker.drain()
    assert list(taker.outcomes) == ["b"]


def test_a_request_is_taken_once(tokenizer: Tokenizer) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    assert isinstance(taker.replica.handovers.reserve(carried), Reserved)
    assert taker.replica.handovers.reserve(carried) == "it is here already"
    taker.replica.handovers.take("a")
    assert taker.replica.handovers.reserve(carried) == "it is here already"
    too_long = replace(carried, request=request_of("b", Kind.ONLINE, prompt=700))
    assert "tokens" in str(taker.replica.handovers.reserve(too_long))
    odd = replace(carried.request, request_id="b", sampling=replace(carried.request.sampling, stop_token_ids=(10**6,)))
    assert "beyond the vocabulary" in str(taker.replica.handovers.reserve(replace(carried, request=odd)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_computed_tokens": 0, "block_ids": []}, "0 blocks"),
        ({"num_computed_tokens": 10**9}, "not those of all its tokens"),
        ({"block_ids": [1]}, "1 blocks"),
    ],
)
def test_what_could_not_decode_here_is_not_taken(tokenizer: Tokenizer, changes: dict[str, object], why: str) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    no_output = replace(carried, request=replace(carried.request, output_token_ids=[]))
    assert "does not decode" in str(taker.replica.handovers.reserve(no_output))
    assert why in str(taker.replica.handovers.reserve(replace(carried, **changes)))
    assert taker.replica.pool.num_free == 40 and isinstance(taker.replica.handovers.reserve(carried), Reserved)


def test_what_is_submitted_while_it_may_come_from_another_waits_for_that(tokenizer: Tokenizer) -> None:
    """Whoever submits it thinks that its giver is gone: it is here once, and is not lost."""
    request = request_of("a", Kind.ONLINE)
    for comes, is_aborted in ((True, False), (False, False), (False, True)):
        giver, taker = make_rig(tokenizer), make_rig(tokenizer)
        (carried,) = held_at(giver, request)
        assert isinstance(taker.replica.handovers.reserve(carried), Reserved)
        taker.replica.submit(request)
        assert not taker.begin(), "its blocks are to be written"
        if is_aborted:
            taker.replica.abort(["a"])
        if comes:
            taker.replica.handovers.take("a")
            assert taker.replica.request_ids_of_gateways() == {"gateway": ["a"]}
            taker.replica.abort(["a"])
        else:
            assert taker.replica.handovers.drop("a") is not is_aborted
        taker.drain()
        taker.take_ended()
        ended = {key: reason for key, (_, reason) in taker.outcomes.items()}
        assert ended == ({} if is_aborted else {"a": FinishReason.ABORT if comes else FinishReason.LENGTH})
        assert taker.replica.pool.num_free == 40


@pytest.mark.parametrize(("num_top", "num_bytes"), [(None, 8), (0, 9), (2, 8), (0, 0)])
def test_scores_of_another_prompt_are_refused(tokenizer: Tokenizer, num_top: int | None, num_bytes: int) -> None:
    giver, taker = make_rig(tokenizer), make_rig(tokenizer)
    (carried,) = held_at(giver, request_of("a", Kind.ONLINE))
    request = replace(carried.request, sampling=replace(carried.request.sampling, prompt_logprobs=num_top))
    refused = taker.replica.handovers.reserve(replace(carried, request=request, prompt_scores=bytes(num_bytes)))
    assert "scores" in str(refused)
    assert taker.replica.pool.num_free == 40 and isinstance(taker.replica.handovers.reserve(carried), Reserved)
