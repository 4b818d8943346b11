"""Steps that begin while the one before them runs: whatever comes of that one, outputs are those of one at a time."""

import random
from dataclasses import dataclass, field

import pytest
from msgspec.structs import asdict, replace

from shared.errors import EngineError
from shared.protocol.executors import EngineSpec, ExecutorCounters
from shared.protocol.handover import Carried
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import StepPlan
from shared.replica.engine import TO_COME, StepBatch, StepResult
from shared.replica.replica import Replica
from shared.replica.step_planner import StepPlanner
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.shared.replica.test_replica import MODEL

SPEC = EngineSpec(
    "m", "sim", "none", "float16", 512, 49152, 16, 40, (2,), takes_steps_ahead=True, is_interruptible=True
)
ANY = Policy()
Outcome = tuple[list[list[int]], FinishReason]


def make_request(request_id: str, rng: random.Random, **changes: object) -> GenerateRequest:
    """Some begin alike, for more than a block; some sample over what came before, some have choices."""
    kind = rng.choice(list(Kind))
    family = 1000 * rng.randrange(3)
    prompt = [*range(family, family + rng.randint(0, 70)), *rng.sample(range(20_000), rng.randint(1, 60))]
    sampling: dict[str, object] = {"max_tokens": rng.randint(1, 40), "seed": rng.randrange(1 << 20)}
    sampling["ignore_eos"] = rng.random() < 0.3
    if rng.random() < 0.04:
        sampling["presence_penalty"] = 0.5
    if kind is Kind.OFFLINE and rng.random() < 0.08:
        sampling["n"] = 2
    params = SamplingParams(**(sampling | changes))  # type: ignore[arg-type]
    gateway_id = "gateway" if kind is Kind.ONLINE else ""
    return GenerateRequest(request_id, kind, prompt, params, 0.0, gateway_id)


@dataclass
class Overlapped:
    """A replica with a step in flight, and mostly another behind it."""

    tokenizer: Tokenizer
    rng: random.Random
    engine: FollowingEngine
    strategy: Strategy = field(default_factory=Strategy)
    max_num_batched_tokens: int = 64
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    num_ahead: int = 0
    num_for_nothing: int = 0  # rows of requests that had ended
    num_taken_back: int = 0
    counted: ExecutorCounters = field(default_factory=ExecutorCounters)  # as they were told last
    num_readers: int = 0  # entered on what a step in flight had yet to write

    def __post_init__(self) -> None:
        spec = self.engine.spec
        limits = Limits(16, spec.num_blocks, self.max_num_batched_tokens, 8)
        self.replica = Replica(limits, spec, self.tokenizer, self.strategy)
        self.step = 0
        self.ahead: StepBatch | None = None
        self.running: StepBatch | None = None

    def begin(self, policy: Policy = ANY, plan: StepPlan | None = None) -> bool:
        assert self.running is None
        batch = self.replica.begin(self.replica.schedule(plan, policy, MODEL), self.step)
        if not batch.sequences and plan is not None:
            batch = self.replica.begin(self.replica.schedule(None, policy, MODEL), self.step)
        if batch.sequences:
            assert batch.follows is None
            self.num_readers += len(self.replica._in_flight[-1].unwritten.readers)
            self.running = batch
            self.step += 1
        self.check()
        return self.running is not None

    def look_ahead(self, policy: Policy = ANY, plan: StepPlan | None = None) -> bool:
        if self.running is None or self.ahead is not None:
            return False
        running = self.replica.look_ahead(plan, policy, MODEL)
        if running:
            self.ahead = self.replica.batch(running, self.step)
            assert self.ahead.follows == self.step - 1
            self.num_readers += len(self.replica._in_flight[-1].unwritten.readers)
            self.num_ahead += 1
        self.check()
        return bool(running)

    def take_back(self) -> None:
        if self.ahead is not None:
            self.ahead = None
            self.replica.take_back()
            self.num_taken_back += 1
            self.check()

    def execute(self, batch: StepBatch) -> StepResult | EngineError:
        try:
            return self.engine.execute(batch)
        except EngineError as error:
            return error

    def finish(self, early: bool = False) -> None:
        """The step in flight ends; ``early``: the engine has run the one behind it too before anybody looks."""
        assert self.running is not None
        result = self.execute(self.running)
        after = self.execute(self.ahead) if early and self.ahead is not None else None
        self.running = None
        self._apply(result)
        if self.ahead is not None:
            self.running, self.ahead = self.ahead, None
            self.step += 1
            held = [request.request_id for request in self.replica.table]
            self.num_for_nothing += sum(each.request_id not in held for each in self.running.sequences)
            assert all(entry.request_id in held for entry in self.replica.in_flight()[0])
            if after is not None:
                self.running = None
                self._apply(after)
        self.check()

    def _apply(self, result: StepResult | EngineError) -> None:
        if isinstance(result, EngineError) or result.is_interrupted:
            if self.ahead is not None:
                self.ahead = None
                self.replica.take_back()
            if isinstance(result, EngineError):
                self.replica.fail(str(result))
            else:
                self.replica.retract()
        else:
            self.replica.finish(result)
        self.take_ended()

    def take_ended(self) -> None:
        for ended in self.replica.take_ended():
            sequence = ended.sequence
            choices = [choice.token_ids for choice in sequence.ended_choices]
            assert sequence.request_id not in self.outcomes, "ended twice"
            self.outcomes[sequence.request_id] = ([*choices, sequence.output_token_ids], ended.finish_reason)

    def check(self) -> None:
        self.replica.pool.check_integrity()
        self.replica.table.check_integrity()
        before, self.counted = self.counted, self.replica.counters()
        fallen = [name for name, count in asdict(before).items() if getattr(self.counted, name) < count]
        assert not fallen, "whoever takes differences of counters sees an executor begin anew"

    def drain(self, looks_ahead: bool = True) -> None:
        while self.replica.has_work or self.running is not None:
            if self.running is None:
                assert self.begin(), "held for ever"
            if looks_ahead:
                self.look_ahead()
            self.finish(early=self.rng.random() < 0.5)
        assert self.replica.pool.num_free == self.replica.limits.num_blocks

    def random_plan(self) -> StepPlan | None:
        """Any subset in any order, with wrong lengths and strangers; or none."""
        if self.rng.random() < 0.5:
            return None
        held = list(self.replica.table)
        self.rng.shuffle(held)
        count = self.rng.randint(0, len(held))
        entries = [ScheduledRequest(each.request_id, each.kind, self.rng.randint(1, 40)) for each in held[:count]]
        entries.append(ScheduledRequest("stranger", Kind.OFFLINE, 3))
        lost = [each.request_id for each in held if self.rng.random() < 0.02]
        return StepPlan("executor-0", "epoch", 0, sorted(entries, key=lambda each: each.kind), [], lost, 0.0)


def alone(tokenizer: Tokenizer, requests: list[GenerateRequest]) -> dict[str, Outcome]:
    """One after the other, one step at a time."""
    rig = Overlapped(tokenizer, random.Random(0), FollowingEngine(SPEC))
    for request in requests:
        rig.replica.submit(request)
        rig.drain(looks_ahead=False)
    assert rig.num_ahead == 0
    return rig.outcomes


def run_at_random(rig: Overlapped, requests: list[GenerateRequest], abort: float = 0.0, burst: int = 1) -> None:
    """As a loop would, with all that may come at any time, up to so many requests at once."""
    rng, waiting = rig.rng, list(requests)
    while waiting or rig.replica.has_work or rig.running is not None:
        policy = Policy(rng.choice([12.0, 40.0, 1e9]))
        if rig.running is None and not rig.begin(policy, rig.random_plan()) and not waiting:
            assert rig.begin(), "held for ever"
        for _ in range(rng.randrange(4)):
            what = rng.random()
            if waiting and what < 0.3:
                for _ in range(min(rng.randint(1, burst) if burst > 1 else 1, len(waiting))):
                    rig.replica.submit(waiting.pop())
                if rng.random() < 0.7:
                    rig.take_back()
            elif what >= 1.0 - abort:
                held = [request.request_id for request in rig.replica.table]
                rig.replica.abort(rng.sample(held, min(1, len(held))))
            else:
                rig.look_ahead(policy, rig.random_plan())
        if rng.random() < 0.7:
            rig.look_ahead(policy)
        if rig.running is not None:
            rig.finish(early=rng.random() < 0.3)
    assert rig.replica.pool.num_free == rig.replica.limits.num_blocks


@pytest.mark.parametrize("order", ["fcfs", "vtc"])
@pytest.mark.parametrize("seed", range(12))
def test_outputs_are_those_of_one_step_at_a_time(tokenizer: Tokenizer, seed: int, order: str) -> None:
    """With few blocks and preemption, shared prefixes, plans that do not fit, aborts, and steps that are taken back."""
    rng = random.Random(seed)
    requests = [make_request(f"{seed}-{n}", rng) for n in range(60)]
    rig = Overlapped(tokenizer, rng, FollowingEngine(SPEC), Strategy(online_order=order))
    run_at_random(rig, requests, abort=0.02)
    aborted = {key for key, (_, reason) in rig.outcomes.items() if reason is FinishReason.ABORT}
    totals, expected = rig.replica.totals, alone(tokenizer, requests)
    assert {key: each for key, each in rig.outcomes.items() if key not in aborted} == {
        key: each for key, each in expected.items() if key not in aborted
    }
    assert len(rig.outcomes) == len(requests) and 0 < len(aborted) < 25
    assert rig.num_ahead > 40 and rig.num_for_nothing > 0 and rig.num_taken_back > 0
    assert totals.preemptions > 0 and totals.cached_tokens > 0


@pytest.mark.parametrize("seed", range(12))
def test_a_step_falls_with_the_one_that_it_follows(tokenizer: Tokenizer, seed: int) -> None:
    """Which failed, was interrupted, or gave some requests no token: nothing of theirs is in any output."""
    rng = random.Random(seed)
    requests = [make_request(f"{seed}-{n}", rng) for n in range(60)]
    engine = FollowingEngine(SPEC, fail=0.1, fail_row=0.01, interrupt=0.2, seed=seed)
    rig = Overlapped(tokenizer, rng, engine)
    run_at_random(rig, requests)
    ended = {key: each for key, each in rig.outcomes.items() if each[1] is not FinishReason.ERROR}
    assert ended == {key: each for key, each in alone(tokenizer, requests).items() if key in ended}
    assert len(rig.outcomes) == len(requests) and len(ended) > 25
    assert engine.num_void > 0 and engine.num_interrupted > 0 and engine.num_failed_rows > 0


def online(request_id: str, prompt: int = 20, first: int = 5, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**({"max_tokens": 8, "seed": 3, "ignore_eos": True} | sampling))  # type: ignore[arg-type]
    return GenerateRequest(request_id, Kind.ONLINE, list(range(first, first + prompt)), params, 0.0, "gateway")


def make_rig(tokenizer: Tokenizer, **spec: object) -> Overlapped:
    return Overlapped(tokenizer, random.Random(0), FollowingEngine(replace(SPEC, **spec)))


def test_what_ends_by_a_stop_string_is_ahead_for_nothing(tokenizer: Tokenizer) -> None:
    """Its blocks are free only once that step has ended."""
    (whole,) = alone(tokenizer, [online("a", max_tokens=20)])["a"][0]
    stop = tokenizer.decode([whole[3]]).strip()
    request = online("a", max_tokens=20, stop=(stop,))
    rig = make_rig(tokenizer)
    rig.replica.submit(request)
    rig.begin()
    while not rig.outcomes:
        assert rig.look_ahead()
        rig.finish()
    assert not rig.replica.has_work and rig.running is not None and rig.num_for_nothing == 1
    assert rig.replica.pool.num_free < 40 and rig.replica.in_flight() == [[]]
    rig.finish()
    assert rig.replica.pool.num_free == 40
    assert rig.outcomes == alone(tokenizer, [request])


def test_the_same_id_may_come_again_before_its_blocks_are_free(tokenizer: Tokenizer) -> None:
    rig = make_rig(tokenizer)
    rig.replica.submit(online("a"))
    rig.begin()
    rig.look_ahead()
    rig.replica.abort(["a"])
    rig.finish()
    assert rig.outcomes.pop("a")[1] is FinishReason.ABORT
    rig.replica.submit(online("a"))
    assert not rig.look_ahead(), "its table is taken"
    rig.replica.abort(["a"])
    rig.check()
    assert rig.replica.pool.num_free < 40
    rig.replica.submit(online("a"))
    rig.finish()
    assert list(rig.outcomes) == ["a"] and rig.outcomes.pop("a")[1] is FinishReason.ABORT
    rig.drain()
    assert rig.outcomes == alone(tokenizer, [online("a")])


def test_beside_a_step_ahead_who_is_in_no_step_ends_at_once(tokenizer: Tokenizer) -> None:
    rig = make_rig(tokenizer)
    rig.replica.submit(online("a", prompt=64))
    rig.begin()
    rig.replica.submit(online("waits", prompt=600 - 100, first=500))
    assert rig.look_ahead() and rig.ahead is not None
    rig.take_back()
    rig.replica.abort(["waits"])
    rig.replica.submit(replace(online("off", first=900), kind=Kind.OFFLINE))
    assert rig.look_ahead(Policy(offline_enabled=False))
    rig.replica.abort(["off", "a"])
    rig.take_ended()
    assert set(rig.outcomes) == {"waits", "off"}
    rig.drain()
    assert {reason for _, reason in rig.outcomes.values()} == {FinishReason.ABORT} and len(rig.outcomes) == 3


def test_a_new_request_takes_the_place_of_a_step_that_has_not_begun(tokenizer: Tokenizer) -> None:
    rig = make_rig(tokenizer)
    rig.replica.submit(online("a"))
    rig.begin()
    rig.look_ahead()
    pace = rig.replica.pace
    rig.replica.submit(online("b", first=500))
    rig.take_back()
    assert [each.request_id for each in rig.replica.table if each.is_in_flight] == ["a"]
    rig.look_ahead()
    assert rig.ahead is not None
    assert {each.request_id: each.token_ids[-1] for each in rig.ahead.sequences} == {"a": TO_COME, "b": 519}
    assert rig.replica.pace == pace, "counted once"
    rig.drain()


def test_a_prompt_finds_what_the_step_that_runs_computes(tokenizer: Tokenizer) -> None:
    """And computes it itself where that step fails."""
    for fails in (False, True):
        rig = make_rig(tokenizer)
        rig.replica.submit(online("a", prompt=50))
        rig.begin()
        rig.replica.submit(online("b", prompt=50))
        rig.look_ahead()
        assert rig.ahead is not None
        assert {each.request_id: each.num_computed_tokens for each in rig.ahead.sequences} == {"a": 50, "b": 48}
        if fails:
            rig.take_back()
            rig.running = None
            rig.replica.fail("bad step")
            rig.check()
            rig.begin()
            assert rig.running is not None and [each.num_computed_tokens for each in rig.running.sequences] == [0]
        rig.drain()
        assert rig.outcomes == alone(tokenizer, [online("a", prompt=50), online("b", prompt=50)])


def test_nobody_who_comes_is_given_blocks_that_are_yet_to_be_written(tokenizer: Tokenizer) -> None:
    """They are read from where it comes from, whatever becomes of the steps in flight."""
    rig, moved = make_rig(tokenizer), replace(online("moved", prompt=50), output_token_ids=[7])
    carried = Carried(moved, 50, [0, 1, 2, 3], 0, [], [])

    def num_read() -> int:
        reserved = rig.replica.handovers.reserve(carried)
        assert not isinstance(reserved, str)
        rig.check()
        rig.replica.handovers.drop("moved")
        return len(reserved.pairs)

    rig.replica.submit(online("a", prompt=50))
    for goes_on in (False, True):
        rig.begin()
        assert num_read() == 4
        rig.look_ahead()
        assert num_read() == 4
        rig.take_back()
        assert num_read() == 4
        if goes_on:
            rig.finish()
        else:
            rig.running = None
            rig.replica.retract()
    assert num_read() == 1
    rig.drain()


@pytest.mark.parametrize(
    ("sampling", "num_blocks"),
    [({"presence_penalty": 0.5}, 40), ({"logit_bias": ((5, 1.0),)}, 40), ({"max_tokens": 1}, 40), ({}, 4)],
)
def test_some_steps_have_to_wait(tokenizer: Tokenizer, sampling: dict[str, object], num_blocks: int) -> None:
    """For a token that the next one depends on; for nobody who goes on; for blocks."""
    rig = make_rig(tokenizer, num_blocks=num_blocks)
    rig.replica.submit(online("a", prompt=32, **sampling))
    rig.begin()
    if num_blocks == 4:
        rig.replica.submit(online("b", prompt=33, first=500))
        rig.replica.abort([])
        while rig.look_ahead():
            rig.finish()
        assert rig.num_ahead < 8
    else:
        assert not rig.look_ahead()
    rig.drain()


@pytest.mark.parametrize(
    ("strategy", "packing"),
    [
        (Strategy(kv_sharing="bidirectional"), "two-phase"),
        (Strategy.of("bros"), "deadline"),
        (Strategy.of("echo"), "two-phase"),
        (Strategy(packing="kv-aware"), "kv-aware"),
    ],
    ids=["paused requests", "deadlines", "deadlines without pauses", "by the time"],
)
def test_some_strategies_have_none(tokenizer: Tokenizer, strategy: Strategy, packing: str) -> None:
    rig = Overlapped(tokenizer, random.Random(0), FollowingEngine(SPEC), strategy)
    rig.replica.submit(online("a"))
    rig.begin()
    assert not rig.look_ahead(Policy(packing=packing))
    rig.drain()


@pytest.mark.parametrize(
    ("takes_steps_ahead", "pipeline_depth", "expected"), [(True, 1, True), (False, 1, False), (True, 2, False)]
)
def test_some_engines_have_none(
    tokenizer: Tokenizer, takes_steps_ahead: bool, pipeline_depth: int, expected: bool
) -> None:
    """And nobody, before a step has begun."""
    spec = replace(SPEC, takes_steps_ahead=takes_steps_ahead, pipeline_depth=pipeline_depth)
    replica = Replica(Limits(16, spec.num_blocks, 64, 8), spec, tokenizer)
    replica.submit(online("a"))
    assert not replica.look_ahead(None, ANY, MODEL)
    assert replica.begin(replica.schedule(None, ANY, MODEL), 0).sequences
    assert bool(replica.look_ahead(None, ANY, MODEL)) is expected


def test_steps_ahead_make_the_pace_that_the_same_steps_make_one_after_another(tokenizer: Tokenizer) -> None:
    paces = []
    for looks_ahead in (False, True):
        rig = make_rig(tokenizer)
        rig.replica.submit(online("a", prompt=100, max_tokens=20))
        rig.drain(looks_ahead)
        assert bool(rig.num_ahead) is looks_ahead
        paces.append(replace(rig.replica.pace, mean_step_ms=0.0))
    assert paces[0] == paces[1] and paces[0].num_online_only > 20


def test_a_plan_that_comes_after_its_step_began_leaves_its_requests(tokenizer: Tokenizer) -> None:
    rig = make_rig(tokenizer)
    planner = StepPlanner(rig.replica, "executor-0", "epoch", 1)
    rig.replica.submit(online("a"))
    source, running = planner.next_step(ANY, MODEL)
    rig.replica.finish(rig.engine.execute(rig.replica.batch(running, planner.step)))
    planner.start(source)
    late = replace(online("b", first=500), kind=Kind.OFFLINE, gateway_id="")
    entries = [ScheduledRequest("b", Kind.OFFLINE, 20)]
    planner.take_plan(StepPlan("executor-0", "epoch", planner.step, entries, [late], [], 1.0), is_late=True)
    assert not planner.has_plan and rig.replica.totals.plans_stale == 1
    rig.drain()
    assert set(rig.outcomes) == {"a", "b"}
