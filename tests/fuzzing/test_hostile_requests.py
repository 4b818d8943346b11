"""Requests, plans and offers that nobody should send, each of which parses, to a replica and its engine: whatever they
hold, they end, and steps go on."""

import contextlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.protocol.codec import decode, encode
from shared.protocol.handover import Carried
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import SamplingParams
from shared.protocol.steps import StepPlan
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.text.tokenizer import Tokenizer
from tests.fuzzing.messages import Maker, mutate
from tests.shared.replica.test_look_ahead import SPEC, Overlapped
from tests.shared.replica.test_replica import MODEL

NUM_IDS = 12  # fewer than requests, so that some come again
NUM_STEPS = 40
MOST_TOKENS = 200  # of a prompt
SEEN: list[dict[str, object]] = [{}, {"n": 2}, {"stop": ("a",)}, {"bad_words": ((5,),)}, {"prompt_logprobs": 1}]


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> SimEngine:
    """For all: it reads the tokenizer for its grammars once."""
    return SimEngine(replace(SPEC, num_blocks=400), MODEL, time_scale=1e-9, model_path=model_folder)


@pytest.mark.parametrize("seed", range(30))
def test_steps_go_on_whatever_comes(tokenizer: Tokenizer, engine: SimEngine, seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(tokenizer, rng, engine)
    for _ in range(NUM_STEPS):
        if rng.random() < 0.4:
            rig.replica.submit(any_request(rng))
            rig.take_back()
        if rng.random() < 0.2:
            rig.reserve(any_offer(rng))
        rig.decide()
        if rng.random() < 0.7:
            rig.replica.tell()
        if rig.running is None:
            rig.begin(plan=any_plan(rng, rig))
        rig.look_ahead(plan=any_plan(rng, rig))
        if rig.running is not None:
            rig.finish(early=rng.random() < 0.3)
    rig.take_back()
    rig.decide(at_once=True)
    rig.replica.abort([request.request_id for request in rig.replica.table])
    rig.drain()


class Rig(Overlapped):
    """Ids come again, and from other replicas."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, engine: SimEngine) -> None:
        super().__init__(tokenizer, rng, engine)
        self._reserved: list[str] = []

    def reserve(self, carried: Carried) -> None:
        """As an executor does, for which what one offer holds ends that one."""
        with contextlib.suppress(Exception):
            if not isinstance(self.replica.handovers.reserve(carried), str):
                self._reserved.append(carried.request.request_id)
        self.check()

    def decide(self, at_once: bool = False) -> None:
        """What becomes of some that may come, or of all."""
        for request_id in list(self._reserved):
            if at_once or self.rng.random() < 0.3:
                self._reserved.remove(request_id)
                decide = self.replica.handovers.take if self.rng.random() < 0.5 else self.replica.handovers.drop
                decide(request_id)
                self.check()

    def take_ended(self) -> None:
        self.replica.take_ended()

    def check(self) -> None:
        super().check()
        for entries in self.replica.in_flight():
            assert len({entry.request_id for entry in entries}) == len(entries), "it runs twice"


def any_request(rng: random.Random) -> GenerateRequest:
    made = Maker(rng, {}, rng.choice((0.05, 0.1, 0.3)))
    sampling = partial(SamplingParams, 4, seed=3)
    while True:
        seen = GenerateRequest("r", rng.choice(list(Kind)), [5, 6, 7], sampling(**rng.choice(SEEN)), 1.0, "gateway")
        message = made.value(GenerateRequest) if rng.random() < 0.5 else _changed(msgspec.to_builtins(seen), rng, 1)
        try:
            request = decode(encode(message), GenerateRequest)
        except msgspec.DecodeError:
            continue
        request_id, prompt = f"r{rng.randrange(NUM_IDS)}", request.prompt_token_ids[:MOST_TOKENS]
        return replace(request, request_id=request_id, prompt_token_ids=prompt)


def any_offer(rng: random.Random) -> Carried:
    while True:
        request = any_request(rng)
        num_tokens = len(request.prompt_token_ids) + len(request.output_token_ids)
        carried = Carried(request, max(0, num_tokens - 1), list(range(-(-num_tokens // 16))), 0, [], [])
        try:
            return decode(encode(_changed(msgspec.to_builtins(carried), rng, 0)), Carried)
        except msgspec.DecodeError:
            continue


def any_plan(rng: random.Random, rig: Overlapped) -> StepPlan | None:
    """Of what is here, with things in it changed; None where that does not parse."""
    held = list(rig.replica.table)
    entries = [ScheduledRequest(each.request_id, each.kind, max(1, each.num_remaining_tokens)) for each in held]
    admitted = [any_request(rng)] if rng.random() < 0.3 else []
    plan = StepPlan("executor-0", "epoch", 0, entries, admitted, [], 0.0)
    try:
        return decode(encode(_changed(msgspec.to_builtins(plan), rng, 0)), StepPlan)
    except msgspec.DecodeError:
        return None


def _changed(message: Any, rng: random.Random, at_least: int) -> Any:
    for _ in range(rng.randrange(at_least, 4)):
        message = mutate(message, rng)
    return message
