"""A replica with the sim engine: whatever is planned, preempted or aborted, outputs are those of a request alone."""

import math
import random
from collections import Counter

import msgspec
import pytest
from msgspec.structs import replace

from services.executor.engines.sim import SimEngine
from services.executor.measure import scratch_batch
from shared.errors import EngineError
from shared.latency.features import BatchFeatures
from shared.latency.linear import LinearLatencyModel
from shared.latency.model import LatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.measurements import MeasureShape, PrefillChunk
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import StepPlan
from shared.replica.engine import Sequence, StepBatch, StepResult, batch_shape
from shared.replica.replica import Replica
from shared.scheduling.credit import OnlineShare
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from shared.text.tokenizer import Tokenizer

NO_TIME = LinearLatencyModel(0, 0, 0, 0, 0, 0, 0)
MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
ANY = Policy()


def make_spec(num_blocks: int = 64, max_model_len: int = 512) -> EngineSpec:
    return EngineSpec("m", "sim", "none", "float16", max_model_len, 49152, 16, num_blocks, (2,))


def make_replica(tokenizer: Tokenizer, num_blocks: int = 64, tokens: int = 64) -> tuple[Replica, SimEngine]:
    spec = replace(make_spec(num_blocks), is_interruptible=True)
    return Replica(Limits(16, num_blocks, tokens, 32), spec, tokenizer), SimEngine(spec, NO_TIME, 30.0)


def make_request(
    request_id: str,
    prompt: int = 20,
    max_tokens: int = 20,
    kind: Kind = Kind.ONLINE,
    first: int = 5,
    **sampling: object,
) -> GenerateRequest:
    seed = sum(request_id.encode())
    params = SamplingParams(max_tokens=max_tokens, seed=seed, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(request_id, kind, list(range(first, first + prompt)), params, 0.0, "gateway")


def run(
    replica: Replica,
    engine: SimEngine,
    policy: Policy = ANY,
    plan: StepPlan | None = None,
    is_interrupted: bool = False,
    model: LatencyModel = MODEL,
) -> int:
    """One step; returns how many requests ran. ``is_interrupted``: where it may be."""
    batch = replica.begin(replica.schedule(plan, policy, model), 0)
    replica.pool.check_integrity()
    replica.table.check_integrity()
    if is_interrupted and batch.may_be_interrupted:
        replica.retract()
    elif batch.sequences:
        replica.finish(engine.execute(batch))
    return len(batch.sequences)


def drain(replica: Replica, engine: SimEngine) -> dict[str, tuple[list[int], FinishReason]]:
    results = {}
    while replica.has_work:
        assert run(replica, engine) > 0, "held for ever"
        for ended in replica.take_ended():
            results[ended.sequence.request_id] = (ended.sequence.output_token_ids, ended.finish_reason)
    assert replica.pool.num_free == replica.limits.num_blocks
    return results


def alone(tokenizer: Tokenizer, request: GenerateRequest) -> tuple[list[int], FinishReason]:
    replica, engine = make_replica(tokenizer, num_blocks=512, tokens=512)
    replica.submit(request)
    return drain(replica, engine)[request.request_id]


def test_a_request_runs_to_its_length(tokenizer: Tokenizer) -> None:
    output, reason = alone(tokenizer, make_request("a", max_tokens=7, ignore_eos=True))
    assert (len(output), reason) == (7, FinishReason.LENGTH)


def test_eos_ends_and_is_part_of_the_output(tokenizer: Tokenizer) -> None:
    output, reason = alone(tokenizer, make_request("a", max_tokens=400))
    assert reason is FinishReason.STOP and output[-1] == 2 and 2 not in output[:-1]


def test_a_stop_token_ends_and_is_not_part_of_the_output(tokenizer: Tokenizer) -> None:
    whole, _ = alone(tokenizer, make_request("a", max_tokens=9, ignore_eos=True))
    cut, reason = alone(tokenizer, make_request("a", max_tokens=9, ignore_eos=True, stop_token_ids=(whole[4],)))
    assert (cut, reason) == (whole[:4], FinishReason.STOP)


def test_a_stop_string_ends_at_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    whole, _ = alone(tokenizer, make_request("a", max_tokens=9, ignore_eos=True))
    stop = tokenizer.decode([whole[3]]).strip()
    cut, reason = alone(tokenizer, make_request("a", max_tokens=9, ignore_eos=True, stop=(stop,)))
    assert reason is FinishReason.STOP and len(cut) <= 4 and stop in tokenizer.decode(cut)


def test_a_stop_token_that_is_to_be_shown_is_part_of_the_output(tokenizer: Tokenizer) -> None:
    """And ends a request that is resumed with it, as it had ended it before."""
    whole, _ = alone(tokenizer, make_request("a", max_tokens=9, ignore_eos=True))
    request = make_request("a", max_tokens=9, ignore_eos=True, stop_token_ids=(whole[4],), includes_stop=True)
    assert alone(tokenizer, request) == (whole[:5], FinishReason.STOP)
    replica, _ = make_replica(tokenizer)
    replica.submit(msgspec.structs.replace(request, output_token_ids=whole[:5]))
    assert [ended.finish_reason for ended in replica.take_ended()] == [FinishReason.STOP]


@pytest.mark.parametrize("num_there", [0, 3, 7])
def test_nothing_ends_a_request_before_its_least_tokens(tokenizer: Tokenizer, num_there: int) -> None:
    """Also where another executor had begun it: ``num_there`` tokens are there."""
    whole, _ = alone(tokenizer, make_request("a", max_tokens=12, ignore_eos=True))
    stop = tuple(tokenizer.decode([token_id]).strip() for token_id in (whole[2], whole[9]))
    request = make_request("a", max_tokens=12, ignore_eos=True, stop=stop, min_tokens=6)
    resumed = msgspec.structs.replace(request, output_token_ids=whole[:num_there])
    assert alone(tokenizer, resumed) == (whole[:10], FinishReason.STOP)


@pytest.mark.parametrize("seed", range(8))
def test_outputs_do_not_depend_on_the_schedule(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    requests = [
        make_request(f"{seed}-{n}", rng.randint(1, 150), rng.randint(1, 60), rng.choice(list(Kind))) for n in range(24)
    ]
    replica, engine = make_replica(tokenizer, num_blocks=24)
    results: dict[str, tuple[list[int], FinishReason]] = {}
    waiting = list(requests)
    while waiting or replica.has_work:
        if waiting and rng.random() < 0.5:
            replica.submit(waiting.pop())
        plan = _random_plan(replica, rng) if rng.random() < 0.5 else None
        run(replica, engine, Policy(rng.choice([8.0, 30.0, 1e9])), plan, is_interrupted=rng.random() < 0.5)
        for ended in replica.take_ended():
            results[ended.sequence.request_id] = (ended.sequence.output_token_ids, ended.finish_reason)
    assert replica.totals.preemptions > 0 and replica.totals.steps_interrupted > 0
    assert results == {request.request_id: alone(tokenizer, request) for request in requests}


@pytest.mark.parametrize("seed", range(3))
def test_choices_of_an_offline_request_are_those_of_their_seeds(tokenizer: Tokenizer, seed: int) -> None:
    """One after another over one prompt, whatever is planned and preempted between them."""
    rng = random.Random(seed)
    made = [make_request(f"{seed}-{n}", 40, rng.randint(1, 40), Kind.OFFLINE, n=3, logprobs=1) for n in range(6)]
    requests = [replace(request, gateway_id="") for request in made]
    replica, engine = make_replica(tokenizer, num_blocks=16)
    for request in requests:
        replica.submit(request)
    found = {}
    while replica.has_work:
        run(replica, engine, Policy(rng.choice([8.0, 1e9])), _random_plan(replica, rng) if rng.random() < 0.5 else None)
        for ended in replica.take_ended():
            sequence = ended.sequence
            found[sequence.request_id] = [*sequence.ended_choices, sequence.choice(ended.finish_reason)]
    assert replica.totals.preemptions > 0 and replica.totals.finished_offline == len(requests)
    assert replica.pool.num_free == replica.limits.num_blocks
    for request in requests:
        choices = found[request.request_id]
        for index, choice in enumerate(choices):
            sampling = replace(request.sampling, n=1, seed=request.sampling.seed_of_choice(index))
            assert (choice.token_ids, choice.finish_reason) == alone(tokenizer, replace(request, sampling=sampling))
            assert choice.logprobs is not None and len(choice.logprobs) == len(choice.token_ids)
        assert len(choices) == 3


def _random_plan(replica: Replica, rng: random.Random) -> StepPlan:
    """Any subset in any order, with wrong lengths and strangers, and any preemptions."""
    held = list(replica.table)
    rng.shuffle(held)
    entries = [ScheduledRequest(r.request_id, r.kind, rng.randint(1, 80)) for r in held[: rng.randint(0, len(held))]]
    entries.append(ScheduledRequest("stranger", Kind.OFFLINE, 3))
    lost = [r.request_id for r in held if rng.random() < 0.1]
    return StepPlan("executor-0", "epoch", 0, entries, [], [*lost, "stranger"], 0.0)


def test_a_shared_prefix_is_computed_once(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    first, second = make_request("a", prompt=50), make_request("b", prompt=50)
    replica.submit(first)
    drain(replica, engine)
    replica.submit(second)
    run(replica, engine)
    assert replica.totals.cached_tokens == 48 and replica.totals.prompt_tokens == 52
    assert drain(replica, engine)["b"] == alone(tokenizer, second)


def test_output_that_a_preempted_request_finds_again_is_none_of_a_prompt(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    request = make_request("a", prompt=20, max_tokens=60, ignore_eos=True)
    replica.submit(request)
    for _ in range(40):
        run(replica, engine)
    entries = [ScheduledRequest("a", Kind.ONLINE, 64)]
    plan = StepPlan("executor-0", "epoch", 0, entries, [], ["a"], 0.0)
    run(replica, engine, plan=plan)
    run(replica, engine)
    (state,) = replica.tell()
    assert replica.totals.preemptions == 1 and state.num_computed_tokens == 60
    assert replica.totals.cached_tokens == 20 == replica.totals.prompt_tokens
    assert drain(replica, engine)["a"] == alone(tokenizer, request)


def test_a_resumed_request_goes_on_where_it_was(tokenizer: Tokenizer) -> None:
    request = make_request("a", max_tokens=12, ignore_eos=True)
    whole, _ = alone(tokenizer, request)
    resumed = GenerateRequest(
        "a", request.kind, request.prompt_token_ids, request.sampling, 0.0, "gateway", output_token_ids=whole[:5]
    )
    assert alone(tokenizer, resumed) == (whole, FinishReason.LENGTH)


def test_a_request_that_had_ended_ends_again_at_once(tokenizer: Tokenizer) -> None:
    request = make_request("a", max_tokens=12)
    resumed = GenerateRequest("a", Kind.ONLINE, [5], request.sampling, 0.0, "g", output_token_ids=[7, 2])
    replica, _ = make_replica(tokenizer)
    replica.submit(resumed)
    (ended,) = replica.take_ended()
    assert ended.finish_reason is FinishReason.STOP and not replica.has_work


def test_aborts_take_effect_between_steps_and_at_the_end_of_one(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    for request_id in ("waiting", "running"):
        replica.submit(make_request(request_id, prompt=64))
    replica.abort(["waiting", "unknown"])
    batch = replica.begin(replica.schedule(None, ANY, MODEL), 0)
    assert [sequence.request_id for sequence in batch.sequences] == ["running"]
    replica.abort(["running"])
    assert replica.has_work
    replica.finish(engine.execute(batch))
    assert not replica.has_work and replica.pool.num_free == 64
    assert {e.sequence.request_id: e.finish_reason for e in replica.take_ended()} == {
        "waiting": FinishReason.ABORT,
        "running": FinishReason.ABORT,
    }


def test_what_can_never_fit_ends_with_a_reason(tokenizer: Tokenizer) -> None:
    replica, _ = make_replica(tokenizer, num_blocks=8)
    replica.submit(make_request("too-long", prompt=512))
    replica.submit(make_request("too-big", prompt=100, max_tokens=100))
    errors = {e.sequence.request_id: e.error for e in replica.take_ended()}
    assert "512 tokens leave no room in the model's context of 512" in errors["too-long"]
    assert "up to 200 tokens do not fit the KV cache of 128 tokens" in errors["too-big"]


class FailingEngine(SimEngine):
    """Fails the steps that hold a given request beyond some tokens, as a kernel that meets a bad input would."""

    poison, num_good_tokens = "poison", 0
    num_failures = 0

    def execute(self, batch: StepBatch) -> StepResult:
        if any(each.request_id == self.poison and _end_of(each) > self.num_good_tokens for each in batch.sequences):
            self.num_failures += 1
            raise EngineError("bad step")
        return super().execute(batch)


class MomentarilyFailingEngine(SimEngine):
    """Fails every third step, whatever is in it."""

    num_steps = 0

    def execute(self, batch: StepBatch) -> StepResult:
        self.num_steps += 1
        if self.num_steps % 3 == 0:
            raise EngineError("out of memory")
        return super().execute(batch)


class RowFailingEngine(SimEngine):
    """Tells which request has no token, as a sampler does where its logits are not finite."""

    def execute(self, batch: StepBatch) -> StepResult:
        result = super().execute(batch)
        if "poison" in result.sampled:
            del result.sampled["poison"]
            result.failed["poison"] = "not a number"
        return result


def _end_of(sequence: Sequence) -> int:
    return sequence.num_computed_tokens + len(sequence.token_ids)


def drain_failing(replica: Replica, engine: SimEngine) -> dict[str, tuple[list[int], FinishReason]]:
    """As ``drain``, with steps that fail."""
    results = {}
    while replica.has_work:
        batch = replica.begin(replica.schedule(None, ANY, MODEL), 0)
        assert batch.sequences, "held for ever"
        try:
            replica.finish(engine.execute(batch))
        except EngineError as error:
            replica.fail(str(error))
        replica.pool.check_integrity()
        replica.table.check_integrity()
        for ended in replica.take_ended():
            results[ended.sequence.request_id] = (ended.sequence.output_token_ids, ended.finish_reason)
    assert replica.pool.num_free == replica.limits.num_blocks
    return results


def test_a_failed_step_is_computed_anew_and_its_culprit_ends(tokenizer: Tokenizer) -> None:
    spec = make_spec()
    replica, engine = Replica(Limits(16, 64, 64, 1), spec, tokenizer), FailingEngine(spec, NO_TIME)
    innocent = make_request("innocent")
    replica.submit(make_request("poison"))
    replica.submit(innocent)
    results = drain_failing(replica, engine)
    assert results["poison"] == ([], FinishReason.ERROR)
    assert results["innocent"] == alone(tokenizer, innocent)


def test_who_ends_because_the_engine_fails_may_be_tried_elsewhere(tokenizer: Tokenizer) -> None:
    """And who can run nowhere may not, nor who has ended well."""
    replica, _ = make_replica(tokenizer)
    engine, may_be_retried = FailingEngine(replica.spec, NO_TIME), dict[str, bool]()
    for request in (make_request("poison"), make_request("innocent"), make_request("too-long", 512)):
        replica.submit(request)
    while replica.has_work:
        batch = replica.begin(replica.schedule(None, ANY, MODEL), 0)
        try:
            replica.finish(engine.execute(batch))
        except EngineError as error:
            replica.fail(str(error))
        may_be_retried |= {each.sequence.request_id: each.may_be_retried for each in replica.take_ended()}
    assert may_be_retried == {"too-long": False, "poison": True, "innocent": False}


@pytest.mark.parametrize(("num_blocks", "num_good_tokens"), [(64, 0), (64, 23), (20, 23), (64, 150)])
def test_of_a_failed_batch_only_the_culprit_ends(tokenizer: Tokenizer, num_blocks: int, num_good_tokens: int) -> None:
    """Its prompt, a decode, or a late chunk of its prompt; with room for all and for some of them."""
    replica, _ = make_replica(tokenizer, num_blocks)
    engine = FailingEngine(replica.spec, NO_TIME, 30.0)
    engine.num_good_tokens = num_good_tokens
    innocents = [make_request(f"innocent-{n}", 15 + n, 30, list(Kind)[n % 2], first=40 * n) for n in range(12)]
    for request in (*innocents[:6], make_request("poison", 20 if num_good_tokens < 100 else 200), *innocents[6:]):
        replica.submit(request)
    results = drain_failing(replica, engine)
    assert results.pop("poison")[1] is FinishReason.ERROR
    assert results == {request.request_id: alone(tokenizer, request) for request in innocents}
    assert engine.num_failures < len(innocents), "not one by one"


def test_online_requests_go_on_beside_the_long_prompt_of_a_suspect(tokenizer: Tokenizer) -> None:
    """Every other step is theirs, also of one that comes later; and the prompt is computed to its end."""
    replica, engine = make_replica(tokenizer, num_blocks=256, tokens=24)
    replica.submit(make_request("runs", 20, 400, ignore_eos=True))
    replica.submit(make_request("long", 480, 4, Kind.OFFLINE, ignore_eos=True))
    for _ in range(3):
        run(replica, engine)
    assert len(replica.begin(replica.schedule(None, ANY, MODEL), 0).sequences) == 2
    replica.fail("bad step")
    replica.submit(make_request("comes", 20, 400, ignore_eos=True))
    num_silent = {"runs": 0, "comes": 0}
    while (long := replica.table.get("long")) is not None and long.num_tokens == 480:
        outputs = replica.finish(engine.execute(replica.begin(replica.schedule(None, ANY, MODEL), 0)))
        heard = [output.request_id for _, output in outputs]
        num_silent = {name: 0 if name in heard else count + 1 for name, count in num_silent.items()}
        assert max(num_silent.values()) <= 3
    assert replica.totals.online_tokens > 20


@pytest.mark.parametrize("num_requests", [1, 8])
def test_failures_that_are_not_in_a_row_end_nothing(tokenizer: Tokenizer, num_requests: int) -> None:
    replica, _ = make_replica(tokenizer)
    requests = [
        make_request(f"{n}", 20, 12, list(Kind)[n % 2], first=100 * n, ignore_eos=num_requests == 1)
        for n in range(num_requests)
    ]
    for request in requests:
        replica.submit(request)
    results = drain_failing(replica, MomentarilyFailingEngine(replica.spec, NO_TIME, 30.0))
    assert results == {request.request_id: alone(tokenizer, request) for request in requests}


def test_a_row_that_fails_takes_nobody_along(tokenizer: Tokenizer) -> None:
    replica, _ = make_replica(tokenizer)
    innocents = [make_request(f"innocent-{n}") for n in range(4)]
    for request in (*innocents, make_request("poison")):
        replica.submit(request)
    results = drain_failing(replica, RowFailingEngine(replica.spec, NO_TIME, 30.0))
    assert results.pop("poison") == ([], FinishReason.ERROR)
    assert results == {request.request_id: alone(tokenizer, request) for request in innocents}
    assert replica.totals.preemptions == 1, "the one that failed is tried once more"


def test_scratch_batches_leave_nothing_behind(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    shape = MeasureShape([PrefillChunk(20), PrefillChunk(30, 100)], [40, 1])
    with scratch_batch(shape, replica.pool, replica.limits, replica.spec) as batch:
        engine.execute(batch)
        assert replica.pool.num_free < 64
    assert replica.pool.num_free == 64
    replica.pool.check_integrity()
    for shape, problem in (
        (MeasureShape([PrefillChunk(65)], []), "not one step"),
        (MeasureShape([], []), "not one step"),
        (MeasureShape([PrefillChunk(0)], [3]), "at least 1"),
        (MeasureShape([PrefillChunk(5, -1)], []), "at least 1"),
        (MeasureShape([], [0]), "at least 1"),
        (MeasureShape([], [600]), "beyond the context"),
        (MeasureShape([PrefillChunk(20, 500)], []), "beyond the context"),
        (MeasureShape([], [500] * 3), "not enough free"),
    ):
        with (
            pytest.raises(ValueError, match=problem),
            scratch_batch(shape, replica.pool, replica.limits, replica.spec),
        ):
            pass
    assert replica.pool.num_free == 64


def test_where_offline_requests_keep_what_they_hold_online_ones_wait_for_it(tokenizer: Tokenizer) -> None:
    requests = [make_request("off", 100, 20, Kind.OFFLINE, ignore_eos=True), make_request("on", 60, 5, first=500)]
    preemptions = {}
    for kv_sharing in ("recompute", "keep-resident"):
        spec = make_spec(8)
        replica = Replica(Limits(16, 8, 128, 32), spec, tokenizer, strategy=Strategy(kv_sharing=kv_sharing))
        engine = SimEngine(spec, NO_TIME, 30.0)
        replica.submit(requests[0])
        run(replica, engine)
        replica.submit(requests[1])
        assert drain(replica, engine) == {request.request_id: alone(tokenizer, request) for request in requests}
        preemptions[kv_sharing] = replica.totals.preemptions
    assert preemptions == {"recompute": 1, "keep-resident": 0}


def test_requests_of_both_kinds_that_keep_all_blocks_and_lack_some_do_not_wait_for_each_other(
    tokenizer: Tokenizer,
) -> None:
    """The offline prompt has 6 of 24 blocks when the online one comes, which takes the other 18, and needs 19."""
    spec = make_spec(num_blocks=24)
    replica = Replica(Limits(16, 24, 16, 32), spec, tokenizer, Strategy(kv_sharing="keep-resident"))
    engine, ended = SimEngine(spec, NO_TIME, 30.0), Counter[str]()
    replica.submit(make_request("offline", 294, 22, Kind.OFFLINE, ignore_eos=True))
    for _ in range(6):
        run(replica, engine)
    replica.submit(make_request("online", 284, 10, first=1000, ignore_eos=True))
    for _ in range(100):
        run(replica, engine)
        ended.update(each.sequence.request_id for each in replica.take_ended())
    assert ended == {"offline": 1, "online": 1} and not replica.has_work


def test_offline_requests_keep_their_order_when_they_lose_their_kv(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer, num_blocks=12)
    ids = [f"off-{number}" for number in range(5)]
    for number, request_id in enumerate(ids):
        replica.submit(make_request(request_id, prompt=20, max_tokens=40, kind=Kind.OFFLINE, first=100 * number))
    while sum(state.num_blocks > 0 for state in replica.tell()) < 3:
        run(replica, engine)
    replica.begin(replica.schedule(None, ANY, MODEL), 0)
    replica.fail("the engine is gone")
    replica.table.check_integrity()
    assert [state.request_id for state in replica.tell()] == ids
    replica.submit(make_request("on", prompt=100, max_tokens=30))
    while replica.has_work:
        run(replica, engine)
        offline = [state.request_id for state in replica.tell() if state.kind is Kind.OFFLINE]
        assert offline == [request_id for request_id in ids if request_id in offline]
    assert replica.totals.preemptions > 3 and replica.totals.finished_offline == 5


def test_a_token_beyond_the_vocabulary_ends_its_request_alone(tokenizer: Tokenizer) -> None:
    """The engine would look it up beyond its table."""
    replica, engine = make_replica(tokenizer)
    last = replica.spec.vocab_size - 1
    replica.submit(make_request("odd", first=last - 5))
    replica.submit(make_request("good", first=last - 19))
    (ended,) = replica.take_ended()
    assert (ended.sequence.request_id, ended.finish_reason) == ("odd", FinishReason.ERROR)
    assert "beyond the vocabulary" in ended.error
    assert drain(replica, engine).keys() == {"good"}


BEYOND = 10**6


@pytest.mark.parametrize(
    "named",
    [
        {"stop_token_ids": (5, BEYOND)},
        {"allowed_token_ids": (5, BEYOND)},
        {"logit_bias": ((5, 1.0), (BEYOND, 1.0))},
        {"bad_words": ((5,), (6, BEYOND), (7,))},
    ],
)
def test_a_token_beyond_the_vocabulary_that_its_sampling_names_ends_its_request_alone(
    tokenizer: Tokenizer, named: dict[str, object]
) -> None:
    replica, engine = make_replica(tokenizer)
    replica.submit(make_request("odd", **named))
    replica.submit(make_request("good"))
    (ended,) = replica.take_ended()
    assert (ended.sequence.request_id, ended.finish_reason) == ("odd", FinishReason.ERROR)
    assert "beyond the vocabulary" in ended.error
    assert drain(replica, engine).keys() == {"good"}


def test_output_without_a_prompt_is_nothing_for_a_second_choice_to_begin_from(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    request = make_request("odd", n=2, max_tokens=4)
    replica.submit(replace(request, prompt_token_ids=[], output_token_ids=[5]))
    (ended,) = replica.take_ended()
    assert ended.finish_reason is FinishReason.ERROR and "prompt without tokens" in ended.error
    assert not drain(replica, engine)


def test_a_plan_that_has_a_request_as_of_another_kind_has_it_run_once(tokenizer: Tokenizer) -> None:
    for kind in Kind:
        replica, _ = make_replica(tokenizer)
        replica.submit(make_request("odd", kind=kind))
        entries = [ScheduledRequest("odd", other, 20) for other in Kind if other is not kind]
        schedule = replica.schedule(StepPlan("executor-0", "epoch", 0, entries, [], [], 0.0), ANY, MODEL)
        assert len(schedule.entries) == (kind is Kind.ONLINE)


@pytest.mark.parametrize("seed", range(4))
def test_totals_are_what_became_of_requests(tokenizer: Tokenizer, seed: int) -> None:
    """Counted from outside, with few blocks and aborts."""
    rng = random.Random(seed)
    replica, engine = make_replica(tokenizer, num_blocks=9)
    counted = Counter[str]()
    for number in range(20):
        lengths = rng.randint(1, 100), rng.randint(1, 40)
        replica.submit(make_request(f"{seed}-{number}", *lengths, rng.choice(list(Kind)), ignore_eos=True))
    while replica.has_work:
        batch = replica.begin(replica.schedule(None, Policy(rng.choice([8.0, 1e9])), MODEL), 0)
        by_id = {request.request_id: request for request in replica.table}
        counted["steps_offline"] += any(by_id[each.request_id].kind is Kind.OFFLINE for each in batch.sequences)
        if rng.random() < 0.1:
            replica.abort([rng.choice(list(by_id))])
        replica.finish(replace(engine.execute(batch), copy_wait_ms=2.0))
        counted["steps"] += 1
        for ended in replica.take_ended():
            kind, num_tokens = ended.sequence.kind.name.lower(), ended.sequence.num_output_tokens
            is_aborted = ended.finish_reason is FinishReason.ABORT
            counted["aborted" if is_aborted else f"finished_{kind}"] += 1
            counted[f"{kind}_tokens"] += num_tokens
    totals = replica.totals
    assert totals.copy_wait_s == pytest.approx(0.002 * counted.pop("steps"))
    assert {name: getattr(totals, name) for name in counted} == counted and len(counted) == 6
    assert totals.preemptions > 0


def test_offline_work_ends_though_each_step_is_interrupted_that_may_be(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    request = make_request("a", 100, 10, Kind.OFFLINE)
    replica.submit(request)
    num_steps = 0
    while replica.has_work and num_steps < 1000:
        run(replica, engine, is_interrupted=True)
        num_steps += 1
    (ended,) = replica.take_ended()
    assert (ended.sequence.output_token_ids, ended.finish_reason) == alone(tokenizer, request)
    assert replica.totals.steps_interrupted > num_steps / 2


@pytest.mark.parametrize(("preset", "waited_ms"), [("bros", 0.0), ("echo", 300.0)])
def test_a_first_token_is_due_from_when_its_request_came(tokenizer: Tokenizer, preset: str, waited_ms: float) -> None:
    """Here, or at the gateway, as the strategy's rule has it; an offline one's never is."""
    strategy = Strategy.of(preset)
    arrived_s, clock_ms = 70.0, 5000.0
    waits_s = {arrived_s: 0.3}
    replica = Replica(
        Limits(16, 64, 64, 32), make_spec(), tokenizer, strategy, now_ms=lambda: clock_ms, waited_s=waits_s.__getitem__
    )
    for kind in Kind:
        replica.submit(replace(make_request(kind.name, kind=kind), arrival_s=arrived_s))
    deadlines_ms = {each.request_id: each.deadline_ms for each in replica.table}
    due_ms = clock_ms - waited_ms + strategy.token_slo.ttft_ms
    assert deadlines_ms == {"ONLINE": pytest.approx(due_ms), "OFFLINE": math.inf}


@pytest.mark.parametrize("pipeline_depth", [1, 2])
@pytest.mark.parametrize("is_interruptible", [False, True])
def test_a_step_is_interrupted_where_nobody_waits_for_it_and_the_engine_can(
    tokenizer: Tokenizer, is_interruptible: bool, pipeline_depth: int
) -> None:
    """Nor one of several in flight: those behind it would have to stop, too."""
    spec = replace(make_spec(), is_interruptible=is_interruptible, pipeline_depth=pipeline_depth)
    replica = Replica(Limits(16, 64, 64, 1), spec, tokenizer)
    assert not replica.is_interruptible
    for number in range(2):
        replica.submit(make_request(f"off-{number}", kind=Kind.OFFLINE))
    batches = []
    for number in range(pipeline_depth):
        batches.append(replica.begin(replica.schedule(None, ANY, MODEL), number))
        assert batches[-1].may_be_interrupted is replica.is_interruptible is (is_interruptible and number == 0)
    engine = SimEngine(spec, NO_TIME, 30.0)
    for batch in batches:
        replica.finish(engine.execute(batch))
    replica.submit(make_request("on"))
    replica.abort(["off-0", "off-1"])
    assert not replica.begin(replica.schedule(None, ANY, MODEL), 2).may_be_interrupted


def test_online_work_by_itself_takes_the_time_that_it_takes_alone(tokenizer: Tokenizer) -> None:
    """Under a tolerance, where the model is right: what offline work adds is what is over that."""
    replica, engine = make_replica(tokenizer)
    policy, seconds = Policy(0.0, tolerance=0.5), 0.0
    for number in range(3):
        replica.submit(make_request(f"on-{number}", max_tokens=80, ignore_eos=True))
    for step in range(40):
        if step == 20:
            assert replica.totals.online_alone_s == pytest.approx(replica.totals.online_s) == pytest.approx(seconds)
            replica.submit(make_request("off", 300, 50, Kind.OFFLINE))
        schedule = replica.schedule(None, policy, MODEL)
        batch = replica.begin(schedule, step)
        result = replace(engine.execute(batch), latency_ms=schedule.latency_ms)
        replica.finish(result, turn_ms=schedule.latency_ms)
        seconds += 3 * schedule.latency_ms / 1e3
    assert replica.totals.online_s == pytest.approx(seconds)
    assert 1.0 < replica.totals.online_s / replica.totals.online_alone_s < 1.5


def test_a_step_takes_what_it_waits_for_its_copies_too(tokenizer: Tokenizer) -> None:
    replica, _ = make_replica(tokenizer)
    replica.submit(make_request("on"))
    replica.begin(replica.schedule(None, Policy(0.0, tolerance=0.5), MODEL), 0)
    replica.finish(StepResult({"on": 7}, latency_ms=5.0, copy_wait_ms=2.0))
    assert replica.totals.online_s == pytest.approx(0.007)


def test_a_batch_has_the_shape_that_was_predicted(tokenizer: Tokenizer) -> None:
    """With whole prompts, parts of them and decodes, of either kind; nothing is found in the prefix cache."""
    replica, engine = make_replica(tokenizer)
    lengths = [9, 150, 30, 70]
    for number, length in enumerate(lengths):
        replica.submit(make_request(f"{number}", length, 12, list(Kind)[number % 2], first=1000 * number))
    while replica.has_work:
        schedule = replica.schedule(None, ANY, MODEL)
        batch = replica.begin(schedule, 0)
        assert MODEL.predict_ms(batch_shape(batch)) == pytest.approx(schedule.latency_ms)
        replica.finish(engine.execute(batch))
        replica.take_ended()
    assert replica.totals.prompt_tokens == sum(lengths)


def test_what_enters_by_a_plan_is_counted_as_the_plan_had_it(tokenizer: Tokenizer) -> None:
    replica, engine = make_replica(tokenizer)
    replica.submit(make_request("on", prompt=40))
    offline = make_request("off", prompt=50, kind=Kind.OFFLINE, first=500)
    plan = StepPlan("executor-0", "epoch", 0, [ScheduledRequest("off", Kind.OFFLINE, 50)], [offline], [], 0.0)
    run(replica, engine, plan=plan)
    totals = replica.totals
    assert (totals.entrant_tokens_planned, totals.entrant_tokens_computed) == (40 + 50, 64)
    replica.submit(make_request("late", prompt=9, first=900))
    run(replica, engine)
    assert (totals.entrant_tokens_planned, totals.entrant_tokens_computed) == (90 + 9, 64 + 9)


def test_online_work_is_what_a_step_with_all_of_it_would_have(tokenizer: Tokenizer) -> None:
    """Of one that decodes, one with a part of its prompt, and one that waits; not of offline ones."""
    replica, engine = make_replica(tokenizer, tokens=60)
    replica.submit(make_request("decodes", prompt=20))
    replica.submit(make_request("off", prompt=20, kind=Kind.OFFLINE, first=300))
    run(replica, engine)
    replica.submit(make_request("begun", prompt=100, first=500))
    run(replica, engine)
    replica.submit(make_request("waits", prompt=30, first=900))
    decodes, begun = (replica.table.running(Kind.ONLINE)[key] for key in ("decodes", "begun"))
    expected = BatchFeatures()
    expected.add_decode(decodes.num_tokens)
    expected.add_prefill(100 - begun.num_computed_tokens, begun.num_computed_tokens)
    expected.add_prefill(30, 0)
    assert begun.num_computed_tokens > 0 and replica.online_work() == expected


def test_how_far_off_a_latency_model_is_is_seen_anew_for_each(tokenizer: Tokenizer) -> None:
    """Beside an online request offline work waits until that is known, whatever was learnt of the model before."""
    replica, engine = make_replica(tokenizer, num_blocks=256)
    replica.submit(make_request("on", prompt=16, max_tokens=400, ignore_eos=True))
    policy = Policy(0.0, tolerance=0.2)
    for _ in range(100):
        run(replica, engine, policy)
    replica.submit(make_request("off", prompt=16, max_tokens=300, kind=Kind.OFFLINE, first=300, ignore_eos=True))
    num_running = [run(replica, engine, policy) for _ in range(20)]
    assert 2 in num_running
    assert replica.pace.credit.extra_ms(OnlineShare(1, 5.0, 0.2)) > 0
    assert run(replica, engine, policy, model=LinearLatencyModel(10.0, 0.2, 0.0, 0.0, 0.0, 0.2, 1.0)) == 1
