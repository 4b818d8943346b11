"""Scores of prompts' tokens on a replica: each prompt's own, whatever is planned, preempted, shared or moved."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, pairwise, product

import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from shared.latency.linear import LinearLatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.prompt_scores import PromptScore, pack_scores, unpack_scores
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import ENDS_WELL, FinishReason, SamplingParams
from shared.protocol.steps import StepPlan
from shared.protocol.tokens import TokenOutput
from shared.replica.engine import StepBatch, StepResult
from shared.replica.live_sequences import SCORES_LOST
from shared.replica.outputs import final_output
from shared.replica.prompt_scores import BlockScores, PromptScoring
from shared.replica.replica import Replica
from shared.scheduling.kv.block_hash import PLAIN, SHARED_TOPS, KVScope, hash_chain, prompt_chain, scored_chain
from shared.scheduling.kv.blocks import BlockPool
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.strategy import PRESETS, Strategy
from shared.text.tokenizer import Tokenizer
from tests.services.executor.engines.following_engine import FollowingEngine
from tests.shared.replica.test_look_ahead import SPEC, Overlapped, run_at_random
from tests.shared.replica.test_look_ahead import make_request as overlapped_request
from tests.shared.replica.test_replica import MODEL, NO_TIME, _random_plan, make_spec

NUM_TOP = 2


class MarkingEngine(SimEngine):
    """Gives each token a score that tells its place in its prompt, its own id and that of the token before it."""

    num_scored = 0

    def execute(self, batch: StepBatch) -> StepResult:
        result = super().execute(batch)
        self.num_scored += add_marks(batch, result)
        return result


class FollowingMarks(FollowingEngine):
    """As ``MarkingEngine``, over steps ahead, failures and interruptions."""

    def execute(self, batch: StepBatch) -> StepResult:
        result = super().execute(batch)
        if not result.is_interrupted:
            add_marks(batch, result)
        return result


def add_marks(batch: StepBatch, result: StepResult) -> int:
    """Returns to how many tokens."""
    num_scored = 0
    for sequence in batch.sequences:
        if sequence.scored_ids:
            before = zip(sequence.token_ids, sequence.scored_ids, strict=False)
            places = count(sequence.num_computed_tokens + 1)
            scores = [mark(place, *pair) for place, pair in zip(places, before, strict=False)]
            result.prompt_scores[sequence.request_id] = pack_scores(scores)
            num_scored += len(scores)
    return num_scored


def mark(place: int, before: int, token_id: int) -> PromptScore:
    return PromptScore(-float(place), token_id, (before, token_id), (-0.5, -1.5))


def marks_of(prompt: list[int]) -> list[PromptScore]:
    return [mark(place, *pair) for place, pair in enumerate(pairwise(prompt), 1)]


def make(
    request_id: str,
    prompt: list[int],
    kind: Kind = Kind.OFFLINE,
    max_tokens: int = 0,
    num_top: int | None = NUM_TOP,
    gateway_id: str = "gateway",
) -> GenerateRequest:
    sampling = SamplingParams(max_tokens, seed=3, prompt_logprobs=num_top, ignore_eos=True)
    return GenerateRequest(request_id, kind, prompt, sampling, 0.0, gateway_id)


def make_replica(
    num_blocks: int = 64, tokens: int = 64, strategy: Strategy | None = None, spec: EngineSpec | None = None
) -> tuple[Replica, MarkingEngine]:
    spec = spec or make_spec(num_blocks)
    return Replica(Limits(16, num_blocks, tokens, 32), spec, None, strategy), MarkingEngine(spec, NO_TIME, 30.0)


def outputs_of(replica: Replica, engine: SimEngine, rng: random.Random | None = None) -> Iterator[TokenOutput]:
    """Until nothing is left; with ``rng``, by plans that make no sense."""
    while replica.has_work:
        plan = _random_plan(replica, rng) if rng is not None and rng.random() < 0.7 else None
        yield from one_step(replica, engine, plan)


def one_step(replica: Replica, engine: SimEngine, plan: StepPlan | None = None) -> list[TokenOutput]:
    batch = replica.begin(replica.schedule(plan, Policy(), MODEL), 0)
    outputs = [output for _, output in replica.finish(engine.execute(batch))] if batch.sequences else []
    replica.pool.check_integrity()
    return [*outputs, *(final_output(ended) for ended in replica.take_ended())]


def scores_by_id(outputs: Iterator[TokenOutput]) -> dict[str, list[PromptScore]]:
    """Told once for each, and before or with the first token."""
    found: dict[str, list[PromptScore]] = {}
    for output in outputs:
        if output.prompt_scores is not None:
            assert output.request_id not in found
            found[output.request_id] = list(unpack_scores(output.prompt_scores, NUM_TOP))
        assert not output.token_ids or output.request_id in found or output.request_id.startswith("plain")
    return found


@pytest.mark.parametrize("preset", ["hygen", "bros", "echo"])
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_each_prompts_own_whatever_is_planned(seed: int, preset: str) -> None:
    """Prompts that share their beginnings, in chunks, preempted, with few blocks; beside requests that want none."""
    rng = random.Random(seed)
    stems = [[rng.randrange(3, 9000) for _ in range(rng.randint(1, 90))] for _ in range(3)]
    spec = replace(make_spec(16), num_host_slots=64)
    replica, engine = make_replica(num_blocks=16, strategy=PRESETS[preset], spec=spec)
    prompts = {}
    for number in range(24):
        prompt = rng.choice(stems) + [rng.randrange(3, 9000) for _ in range(rng.randint(0, 40))]
        request_id, kind = f"r{number}", rng.choice([Kind.ONLINE, Kind.OFFLINE])
        prompts[request_id] = prompt
        replica.submit(make(request_id, prompt, kind, rng.choice([0, 1, 12])))
        replica.submit(replace(make(f"plain-{number}", prompt, kind, 3, num_top=None), gateway_id=""))
    found = scores_by_id(outputs_of(replica, engine, rng))
    assert found == {request_id: marks_of(prompt) for request_id, prompt in prompts.items()}
    assert replica.totals.preemptions + replica.totals.pauses > 0 and replica.totals.cached_tokens > 0
    assert replica.pool.num_free == replica.limits.num_blocks


@dataclass
class OverlappedScores(Overlapped):
    """That remembers the scores of those that have ended well."""

    scores: dict[str, list[PromptScore]] = field(default_factory=dict)

    def take_ended(self) -> None:
        taken = self.replica.take_ended()
        for ended in taken:
            if ended.finish_reason in ENDS_WELL and ended.sequence.prompt_scores is not None:
                self.scores[ended.sequence.request_id] = list(unpack_scores(ended.sequence.prompt_scores, NUM_TOP))
            assert ended.sequence.request_id not in self.outcomes
            self.outcomes[ended.sequence.request_id] = ([], ended.finish_reason)


@pytest.mark.parametrize("burst", [1, 10])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_steps_that_begin_ahead_and_fail_lose_no_score(
    tokenizer: Tokenizer, seed: int, breaks: bool, burst: int
) -> None:
    """A step may find blocks whose scores come with its own end, or that of the one that it follows."""
    rng = random.Random(seed)
    made = [follow_up(f"{seed}-{n}", rng) for n in range(50)]
    scored = {each.request_id: each for each in made if each.sampling.prompt_logprobs is not None}
    rates = {"fail": 0.05, "fail_row": 0.01, "interrupt": 0.2} if breaks else {}
    engine = FollowingMarks(SPEC, seed=seed, **rates)
    rig = OverlappedScores(tokenizer, rng, engine, max_num_batched_tokens=64 if burst == 1 else 400)
    run_at_random(rig, made, abort=0.02, burst=burst)
    well = [key for key, (_, reason) in rig.outcomes.items() if reason in ENDS_WELL and key in scored]
    assert rig.scores == {key: marks_of(scored[key].prompt_token_ids) for key in well} and len(well) > 10
    assert rig.num_ahead > 10 and rig.replica.totals.cached_tokens > 0


def follow_up(request_id: str, rng: random.Random) -> GenerateRequest:
    """Most are scored; some of these generate nothing."""
    request = overlapped_request(request_id, rng)
    if rng.random() < 0.3:
        return request
    sampling = replace(request.sampling, prompt_logprobs=NUM_TOP)
    return replace(request, sampling=replace(sampling, max_tokens=0) if rng.random() < 0.4 else sampling)


@pytest.mark.parametrize("name", PRESETS)
def test_every_strategy_scores_prompts_and_ends_those_that_generate_nothing(name: str) -> None:
    replica, engine = make_replica(strategy=PRESETS[name], spec=replace(make_spec(), num_host_slots=64))
    prompt = list(range(5, 95))
    for kind in Kind:
        replica.submit(make(f"{kind.name}-scored", prompt, kind))
        replica.submit(make(f"{kind.name}-warms", prompt, kind, num_top=None))
    outputs = list(outputs_of(replica, engine)) if PRESETS[name].offline_order else []
    assert {output.request_id for output in outputs} == {"ONLINE-scored", "ONLINE-warms", *OFFLINE_IDS}
    for output in outputs:
        assert (output.finish_reason, output.token_ids, output.num_output_tokens) == (FinishReason.LENGTH, [], 0)
        scored = output.request_id.endswith("scored")
        assert (output.prompt_scores is not None) is scored


OFFLINE_IDS = ("OFFLINE-scored", "OFFLINE-warms")


def test_scored_prompts_share_what_was_scored_and_nothing_else() -> None:
    replica, engine = make_replica(tokens=512)
    prompt = list(range(5, 105))
    replica.submit(make("plain", prompt, max_tokens=1, num_top=None))
    list(outputs_of(replica, engine))
    replica.submit(make("first", prompt))
    assert scores_by_id(outputs_of(replica, engine)) == {"first": marks_of(prompt)}
    assert replica.totals.cached_tokens == 0 and engine.num_scored == 99
    others = {f"choice-{number}": [*prompt, 200 + number] for number in range(4)}
    for request_id, each in others.items():
        replica.submit(make(request_id, each, max_tokens=1))
    found = scores_by_id(outputs_of(replica, engine))
    assert found == {request_id: marks_of(each) for request_id, each in others.items()}
    assert replica.totals.cached_tokens == 4 * 96, "but for the block whose last score is of the next token"
    assert engine.num_scored == 99 + 4 * 4
    replica.submit(make("fewer tops", prompt, num_top=1))
    list(outputs_of(replica, engine))
    assert replica.totals.cached_tokens == 4 * 96


def test_a_request_that_was_told_its_scores_is_not_told_again() -> None:
    replica, engine = make_replica(tokens=512)
    replica.submit(make("a", list(range(5, 45)), Kind.ONLINE, max_tokens=3))
    first, *others = outputs_of(replica, engine)
    assert first.prompt_scores is not None and len(first.token_ids) == 1
    assert [output.prompt_scores for output in others] == [None, None]


def test_scores_move_with_a_request_that_nobody_was_told_of() -> None:
    """One of a batch; that of a gateway has them already, and asks for them no more. Also where it loses its KV
    there."""
    for gateway_id, preempted in product(("", "gateway"), ([], ["a"])):
        giver, engine = make_replica(tokens=512)
        taker, other = make_replica(tokens=512)
        prompt = list(range(5, 45))
        giver.submit(make("a", prompt, max_tokens=9, gateway_id=gateway_id))
        told = one_step(giver, engine)
        giver.handovers.ask(["a"])
        (carried,) = giver.handovers.collect()
        assert not isinstance(taker.handovers.reserve(carried), str)
        taker.handovers.take("a")
        giver.handovers.gave("a")
        one_step(taker, other, StepPlan("executor-0", "epoch", 0, [], [], preempted, 0.0))
        outputs = [*told, *outputs_of(taker, other)]
        assert scores_by_id(iter(outputs)) == {"a": marks_of(prompt)}
        assert other.num_scored == 0


def test_a_giver_that_keeps_its_request_tells_its_scores() -> None:
    giver, engine = make_replica(tokens=512)
    giver.submit(make("a", list(range(5, 45)), max_tokens=9, gateway_id=""))
    one_step(giver, engine)
    giver.handovers.ask(["a"])
    (carried,) = giver.handovers.collect()
    assert carried.prompt_scores is not None
    giver.handovers.release("a")
    assert list(scores_by_id(outputs_of(giver, engine))) == ["a"]


@pytest.mark.parametrize("tokens", [20, 30], ids=["one after the other", "in the same step"])
def test_an_engine_that_gives_no_scores_costs_its_request_alone(tokens: int) -> None:
    spec = make_spec()
    replica = Replica(Limits(16, 64, tokens, 32), spec, None)

    class Silent(SimEngine):
        def execute(self, batch: StepBatch) -> StepResult:
            result = super().execute(batch)
            result.prompt_scores.clear()
            return result

    engine = Silent(spec, LinearLatencyModel(0, 0, 0, 0, 0, 0, 0))
    replica.submit(make("a", list(range(5, 45)), max_tokens=9))
    replica.submit(make("b", list(range(5, 45)), max_tokens=9, num_top=None))
    ends = {output.request_id: output for output in outputs_of(replica, engine) if output.finish_reason}
    assert (ends["a"].finish_reason, ends["a"].error) == (FinishReason.ERROR, SCORES_LOST)
    assert ends["b"].finish_reason is FinishReason.LENGTH


def test_the_chain_of_scored_blocks_knows_the_token_that_follows_each() -> None:
    prompt = list(range(50))
    chain = scored_chain(prompt, 16, NUM_TOP)
    assert len(chain) == 3 and len(scored_chain(prompt[:48], 16, NUM_TOP)) == 2
    assert scored_chain([*prompt[:32], 99], 16, NUM_TOP)[0] == chain[0]
    assert scored_chain([*prompt[:32], 99], 16, NUM_TOP)[1] != chain[1], "its last score is of another token"
    assert scored_chain([7, *prompt[1:]], 16, NUM_TOP)[0] != chain[0]
    assert not set(chain) & {*hash_chain(prompt, 16), *hash_chain(prompt[1:], 16), *scored_chain(prompt, 16, 1)}
    assert prompt_chain(prompt, 16, KVScope(NUM_TOP), 1) == chain[:1] and prompt_chain(prompt, 16, PLAIN) == hash_chain(
        prompt, 16
    )
    assert scored_chain(prompt, 16, SHARED_TOPS) == [], "so many take too much memory"


def test_scores_are_kept_for_what_the_cache_can_find() -> None:
    pool = BlockPool(4, 16)
    kept = BlockScores(pool)
    for number in range(30):
        prompt = list(range(number * 100, number * 100 + 33))
        hashes = scored_chain(prompt, 16, NUM_TOP)
        assert pool.start("r", Kind.OFFLINE, 33, hashes) == 0 and pool.grow("r", 33)
        scoring = PromptScoring(NUM_TOP, 33)
        assert kept.add(scoring, hashes, 0, pack_scores(marks_of(prompt)))
        pool.commit("r", 33, hashes)
        pool.free("r")
        assert len(kept) <= 2 * pool.num_blocks + 2
        for index in range(pool.look_up(hashes, Kind.OFFLINE).num_blocks):
            again = PromptScoring(NUM_TOP, 33)
            assert kept.add(again, hashes, (index + 1) * 16, b"") and again.num_scored == (index + 1) * 16
    assert not kept.add(PromptScoring(NUM_TOP, 33), scored_chain([1] * 33, 16, NUM_TOP), 16, b"")
