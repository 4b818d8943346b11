"""Requests that enter by one step and begin alike: what is shared is computed once, and falls with who computes it."""

import random
from collections import deque

import pytest
from msgspec.structs import replace

from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.replica.engine import StepBatch
from shared.replica.replica import Replica
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.shared.replica.factories import begin_or_end
from tests.shared.replica.test_look_ahead import SPEC, Outcome, Overlapped, alone, make_request, run_at_random
from tests.shared.replica.test_replica import MODEL

ANY = Policy()


def request(request_id: str, prompt: int = 50, first: int = 5, kind: Kind = Kind.OFFLINE) -> GenerateRequest:
    """Same ``first``, same beginning."""
    params = SamplingParams(max_tokens=4, seed=sum(request_id.encode()), ignore_eos=True)
    return GenerateRequest(request_id, kind, list(range(first, first + prompt)), params, 0.0)


class Steps:
    """One at a time."""

    def __init__(self, tokenizer: Tokenizer, *requests: GenerateRequest, strategy: Strategy | None = None) -> None:
        self.engine = FollowingEngine(SPEC)
        limits = Limits(16, SPEC.num_blocks, 128, 16)
        self.replica = Replica(limits, self.engine.spec, tokenizer, strategy)
        self.outcomes: dict[str, Outcome] = {}
        self.batch = StepBatch(0, [])
        self.is_running = False
        for each in requests:
            self.replica.submit(each)

    def begin(self) -> dict[str, tuple[int, int]]:
        """Of each that runs, the tokens that were there, and those that it computes."""
        self.batch = self.replica.begin(self.replica.schedule(None, ANY, MODEL), self.batch.step + 1)
        self.is_running = bool(self.batch.sequences)
        return {each.request_id: (each.num_computed_tokens, len(each.token_ids)) for each in self.batch.sequences}

    def finish(self, *failed: str) -> None:
        """These rows have no token."""
        result = self.engine.execute(self.batch)
        self.engine._spoil(self.batch, list(failed))
        for request_id in failed:
            result.sampled.pop(request_id, None)
            result.failed[request_id] = "not a number"
        self.is_running = False
        self.replica.finish(result)
        self.check()

    def interrupt(self) -> None:
        self.engine._spoil(self.batch, [each.request_id for each in self.batch.sequences])
        self.is_running = False
        self.replica.retract()
        self.check()

    def fail(self) -> None:
        self.engine._spoil(self.batch, [each.request_id for each in self.batch.sequences])
        self.is_running = False
        self.replica.fail("bad step")
        self.check()

    def check(self) -> None:
        self.replica.pool.check_integrity()
        self.replica.table.check_integrity()
        for ended in self.replica.take_ended():
            sequence = ended.sequence
            self.outcomes[sequence.request_id] = ([sequence.output_token_ids], ended.finish_reason)

    def drain(self) -> dict[str, Outcome]:
        while self.replica.has_work:
            assert self.is_running or self.begin(), "held for ever"
            self.finish()
        return self.outcomes


def apart(tokenizer: Tokenizer, *requests: GenerateRequest) -> dict[str, Outcome]:
    """Each alone on a replica of its own."""
    return {key: each for request in requests for key, each in Steps(tokenizer, request).drain().items()}


def test_what_begins_alike_is_computed_once(tokenizer: Tokenizer) -> None:
    requests = [request("on", kind=Kind.ONLINE), request("a"), request("b", prompt=70), request("other", first=900)]
    steps = Steps(tokenizer, *requests)
    assert steps.begin() == {"on": (0, 50), "a": (48, 2), "b": (48, 22), "other": (0, 50)}
    assert steps.drain() == apart(tokenizer, *requests)
    assert steps.replica.totals.cached_tokens == 96


def test_an_interrupted_step_leaves_nothing_to_be_found(tokenizer: Tokenizer) -> None:
    """Who found something in it waits again; who found what was there before stays."""
    requests = [request("old", prompt=33), request("a", first=900), request("b", first=900), request("c", prompt=40)]
    steps = Steps(tokenizer, requests[0])
    steps.begin()
    steps.finish()
    for each in requests[1:]:
        steps.replica.submit(each)
    assert steps.begin() == {"old": (33, 1), "a": (0, 50), "b": (48, 2), "c": (32, 8)}
    steps.interrupt()
    assert {each.request_id for each in steps.replica.table if each.num_blocks} == {"old", "a", "c"}
    assert steps.replica.totals.cached_tokens == 32
    assert steps.drain() == apart(tokenizer, *requests)


def test_who_found_what_a_failed_row_did_not_write_is_computed_anew(tokenizer: Tokenizer) -> None:
    """Nobody else is, and nothing of theirs can be found."""
    requests = [request("a"), request("b", prompt=80), request("c", prompt=75), request("d", first=900)]
    requests.append(request("e", first=900))
    steps = Steps(tokenizer, *requests)
    begun = steps.begin()
    assert begun == {"a": (0, 50), "b": (48, 32), "c": (64, 11), "d": (0, 35)}
    steps.finish("a")
    assert {each.request_id for each in steps.replica.table if each.num_blocks} == {"d"}
    hashes = hash_chain(requests[1].prompt_token_ids, 16)
    assert not any(steps.replica.pool.look_up([key], Kind.OFFLINE).num_blocks for key in hashes)
    assert steps.drain() == apart(tokenizer, *requests)
    assert steps.replica.totals.preemptions == 3


def test_a_step_that_fails_leaves_nothing_to_be_found(tokenizer: Tokenizer) -> None:
    requests = [request("a"), request("b"), request("c")]
    steps = Steps(tokenizer, *requests)
    steps.begin()
    steps.fail()
    assert steps.begin() == {"a": (0, 50)}, "one of the suspects"
    assert steps.drain() == apart(tokenizer, *requests)


def families(rng: random.Random) -> list[GenerateRequest]:
    """Each five that begin alike, for more than a block."""
    requests = [make_request(str(n), rng) for n in range(100)]
    for number, each in enumerate(requests):
        first = 1000 * (number // 5)
        each.prompt_token_ids[:0] = range(first, first + rng.randint(20, 70))
    return requests


@pytest.mark.parametrize("kv_sharing", ["recompute", "bidirectional"])
@pytest.mark.parametrize("seed", range(16))
def test_outputs_are_those_of_one_request_at_a_time(tokenizer: Tokenizer, seed: int, kv_sharing: str) -> None:
    """Many come at once, five that begin alike; steps fail, are interrupted, taken back, or give some no token."""
    rng = random.Random(seed)
    requests = families(rng)
    spec = replace(SPEC, num_blocks=60, num_host_slots=300)
    engine = FollowingEngine(spec, fail=0.05, fail_row=0.05, interrupt=0.2, seed=seed)
    rig = Overlapped(tokenizer, rng, engine, Strategy(kv_sharing=kv_sharing), max_num_batched_tokens=400)
    run_at_random(rig, requests, abort=0.01, burst=10)
    ended = {key: each for key, each in rig.outcomes.items() if each[1] not in (FinishReason.ERROR, FinishReason.ABORT)}
    assert ended == {key: each for key, each in alone(tokenizer, requests).items() if key in ended}
    assert len(rig.outcomes) == len(requests) and len(ended) > 25 and rig.num_readers > 3


@pytest.mark.parametrize("kv_sharing", ["recompute", "bidirectional"])
@pytest.mark.parametrize("seed", range(8))
def test_what_a_step_finds_of_one_before_it_falls_with_that(tokenizer: Tokenizer, seed: int, kv_sharing: str) -> None:
    """Two are in flight, in the stages of a pipeline."""
    rng = random.Random(seed)
    waiting = families(rng)
    requests, launched, num_readers = list(waiting), deque[StepBatch](), 0
    spec = replace(SPEC, num_blocks=60, pipeline_depth=2, is_interruptible=False, num_host_slots=300)
    engine = FollowingEngine(spec, fail=0.1, fail_row=0.05, seed=seed)
    limits, spec = Limits(16, 60, 300, 16), replace(spec, takes_steps_ahead=False)
    replica = Replica(limits, spec, tokenizer, Strategy(kv_sharing=kv_sharing))
    outcomes: dict[str, Outcome] = {}
    while waiting or replica.has_work:
        for _ in range(min(rng.randrange(4), len(waiting))):
            replica.submit(waiting.pop())
        num_readers += begin_or_end(replica, engine, launched, MODEL)
        for ended in replica.take_ended():
            sequence = ended.sequence
            choices = [*(choice.token_ids for choice in sequence.ended_choices), sequence.output_token_ids]
            outcomes[sequence.request_id] = (choices, ended.finish_reason)
    ended = {key: each for key, each in outcomes.items() if each[1] is not FinishReason.ERROR}
    assert ended == {key: each for key, each in alone(tokenizer, requests).items() if key in ended}
    assert len(outcomes) == len(requests) and len(ended) > 25 and num_readers > 5
    assert replica.pool.num_free == 60


def test_where_pages_are_by_kind_each_kind_computes_its_own(tokenizer: Tokenizer) -> None:
    """And falls with nothing that the other does not write."""
    requests = [request("on", kind=Kind.ONLINE), request("also-on", kind=Kind.ONLINE), request("a"), request("b")]
    steps = Steps(tokenizer, *requests, strategy=Strategy(kv_sharing="bidirectional"))
    assert steps.begin() == {"on": (0, 50), "also-on": (48, 2), "a": (0, 50), "b": (48, 2)}
    steps.finish("on")
    assert {each.request_id for each in steps.replica.table if each.num_blocks} == {"a", "b"}
    hashes = hash_chain(requests[0].prompt_token_ids, 16)
    assert [steps.replica.pool.look_up(hashes, kind).num_blocks for kind in Kind] == [0, 3]
    assert steps.drain() == apart(tokenizer, *requests)
