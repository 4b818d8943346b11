"""A replica whose requests share blocks: each output is that of its request alone, whatever was paused or dropped."""

import random
from collections import deque

import pytest

from services.executor.measure import scratch_batch
from shared.errors import EngineError
from shared.latency.linear import LinearLatencyModel
from shared.protocol.executors import EngineSpec
from shared.protocol.profiling.measurements import MeasureShape, PrefillChunk
from shared.protocol.requests import GenerateRequest
from shared.protocol.sampling import FinishReason, SamplingParams
from shared.protocol.steps import StepPlan
from shared.replica.engine import StepBatch
from shared.replica.replica import Replica
from shared.scheduling.kv.block_hash import hash_chain
from shared.scheduling.limits import Limits
from shared.scheduling.policy import Policy
from shared.scheduling.request import Kind
from shared.scheduling.schedule import ScheduledRequest
from shared.scheduling.strategy import Strategy
from tests.services.executor.engines.slot_engine import SlotEngine
from tests.shared.replica.factories import begin_or_end

MODEL = LinearLatencyModel(5.0, 0.1, 0.001, 0.0, 0.0, 0.1, 0.5)
ANY = Policy()
Results = dict[str, tuple[list[int], FinishReason]]


def make_replica(
    num_blocks: int,
    num_host_slots: int = 1000,
    tokens: int = 64,
    fail: float = 0.0,
    seed: int = 0,
    swap_ms_per_slot: float = 0.0,
    pipeline_depth: int = 1,
) -> tuple[Replica, SlotEngine]:
    spec = EngineSpec(
        *("m", "sim", "none", "float16", 512, 49152, 16, num_blocks, (2,)),
        num_host_slots=num_host_slots,
        is_interruptible=True,
        pipeline_depth=pipeline_depth,
    )
    limits = Limits(16, num_blocks, tokens, 32, swap_ms_per_slot)
    replica = Replica(limits, spec, None, strategy=Strategy(kv_sharing="bidirectional"))
    return replica, SlotEngine(spec, fail=fail, seed=seed)


def make_request(request_id: str, prompt: int, max_tokens: int, kind: Kind, first: int = 5) -> GenerateRequest:
    """One with a name, not a number, generates all its tokens."""
    params = SamplingParams(
        max_tokens=max_tokens, seed=sum(request_id.encode()), ignore_eos=not request_id[0].isdigit()
    )
    return GenerateRequest(request_id, kind, list(range(first, first + prompt)), params, 0.0, "gateway")


def step(
    replica: Replica,
    engine: SlotEngine,
    policy: Policy = ANY,
    plan: StepPlan | None = None,
    is_interrupted: bool = False,
) -> int:
    """One step, with the copies of the next one before it; returns how many requests ran. ``is_interrupted``: where it
    may be; then it has written KV, and nothing comes of it."""
    batch = replica.begin(replica.schedule(plan, policy, MODEL), 0)
    replica.pool.check_integrity()
    replica.table.check_integrity()
    if batch.sequences:
        for copies in (*batch.copies, *replica.copies_ahead):
            engine.start_copies(copies)
        try:
            result = engine.execute(batch)
            if is_interrupted and batch.may_be_interrupted:
                replica.retract()
            else:
                replica.finish(result)
        except EngineError as error:
            replica.fail(str(error))
        replica.pool.check_integrity()
    return len(batch.sequences)


def collect(replica: Replica, results: Results) -> None:
    for ended in replica.take_ended():
        results[ended.sequence.request_id] = (ended.sequence.output_token_ids, ended.finish_reason)


def alone(requests: list[GenerateRequest]) -> Results:
    results: Results = {}
    for request in requests:
        replica, engine = make_replica(num_blocks=16, tokens=512)
        replica.submit(request)
        while replica.has_work:
            assert step(replica, engine) == 1
        collect(replica, results)
    return results


def random_plan(replica: Replica, rng: random.Random) -> StepPlan:
    """Any subset in any order, with wrong lengths, and any preemptions."""
    held = list(replica.table)
    rng.shuffle(held)
    entries = [ScheduledRequest(r.request_id, r.kind, rng.randint(1, 80)) for r in held[: rng.randint(0, len(held))]]
    lost = [r.request_id for r in held if rng.random() < 0.1]
    return StepPlan("executor-0", "epoch", 0, entries, [], lost, 0.0)


def plan_of(**num_tokens: int) -> StepPlan:
    """Of offline requests alone."""
    entries = [ScheduledRequest(request_id, Kind.OFFLINE, count) for request_id, count in num_tokens.items()]
    return StepPlan("executor-0", "epoch", 0, entries, [], [], 0.0)


@pytest.mark.parametrize(("num_host_slots", "swap_ms_per_slot"), [(1000, 0.0), (1000, 5.0), (40, 5.0)])
@pytest.mark.parametrize("seed", range(6))
def test_outputs_do_not_depend_on_who_shares_what(seed: int, num_host_slots: int, swap_ms_per_slot: float) -> None:
    rng = random.Random(seed)
    requests = [
        make_request(
            f"{seed}-{n}", rng.randint(1, 150), rng.randint(1, 60), rng.choice(list(Kind)), rng.choice([5, 900])
        )
        for n in range(40)
    ]
    replica, engine = make_replica(24, num_host_slots, swap_ms_per_slot=swap_ms_per_slot)
    results: Results = {}
    waiting = list(requests)
    while waiting or replica.has_work:
        if waiting and rng.random() < 0.3:
            replica.submit(waiting.pop())
        plan = random_plan(replica, rng) if rng.random() < 0.3 else None
        step(replica, engine, Policy(rng.choice([8.0, 30.0, 1e9])), plan, is_interrupted=rng.random() < 0.3)
        collect(replica, results)
    totals = replica.totals
    assert totals.steps_interrupted > 0
    assert min(totals.pauses, totals.checkpointed_slots, totals.restored_slots) > 0
    assert results == alone(requests)
    assert replica.pool.num_free == 24


@pytest.mark.parametrize("swap_ms_per_slot", [0.0, 5.0])
@pytest.mark.parametrize("seed", range(4))
def test_failed_steps_leave_no_garbage_in_any_output(seed: int, swap_ms_per_slot: float) -> None:
    rng = random.Random(seed)
    requests = [
        make_request(f"{n}", rng.randint(1, 150), rng.randint(1, 60), rng.choice(list(Kind))) for n in range(40)
    ]
    replica, engine = make_replica(24, 200, fail=0.02, seed=seed, swap_ms_per_slot=swap_ms_per_slot)
    results: Results = {}
    waiting = list(requests)
    while waiting or replica.has_work:
        if waiting and rng.random() < 0.3:
            replica.submit(waiting.pop())
        step(replica, engine)
        collect(replica, results)
    undisturbed = alone(requests)
    errors = [request_id for request_id, (_, reason) in results.items() if reason is FinishReason.ERROR]
    assert replica.totals.checkpointed_slots > 0 and len(errors) < 30
    assert {key: results[key] for key in results if key not in errors} == {
        key: undisturbed[key] for key in results if key not in errors
    }
    assert replica.pool.num_free == 24


@pytest.mark.parametrize("seed", range(2))
def test_a_failed_step_leaves_no_garbage_in_those_behind_it(seed: int) -> None:
    """Two are in flight, and the second may stand on what the first was to copy."""
    rng = random.Random(seed)
    requests = [
        make_request(f"{n}", rng.randint(1, 120), rng.randint(1, 60), rng.choice(list(Kind))) for n in range(30)
    ]
    replica, engine = make_replica(14, 300, fail=0.02, seed=seed, pipeline_depth=2)
    results: Results = {}
    waiting, launched = list(requests), deque[StepBatch]()
    while waiting or replica.has_work:
        if waiting and rng.random() < 0.5:
            replica.submit(waiting.pop())
        begin_or_end(replica, engine, launched, MODEL)
        collect(replica, results)
    ended = {key: each for key, each in results.items() if each[1] is not FinishReason.ERROR}
    assert ended == {key: each for key, each in alone(requests).items() if key in ended} and len(ended) > 10
    assert min(replica.totals.pauses, replica.totals.checkpointed_slots) > 0


def test_what_is_computed_from_copies_that_failed_is_not_to_be_found() -> None:
    """Behind the step that was to make them, which one of two restores that begin alike and were paused."""
    replica, engine = make_replica(num_blocks=12, tokens=256, pipeline_depth=2)
    requests = [make_request("x", 40, 30, Kind.OFFLINE), make_request("w", 100, 8, Kind.OFFLINE)]
    requests += [make_request("on", 185, 1, Kind.ONLINE), make_request("r", 95, 4, Kind.OFFLINE)]
    results: Results = {}
    replica.submit(requests[0])
    step(replica, engine)
    replica.submit(requests[1])
    step(replica, engine, plan=plan_of(w=20))
    replica.submit(requests[2])
    step(replica, engine)
    replica.submit(requests[3])
    for each in ({"x": 1}, {"w": 40, "r": 15}):
        batch = replica.begin(replica.schedule(plan_of(**each), ANY, MODEL), 0)
        assert {sequence.request_id: len(sequence.token_ids) for sequence in batch.sequences} == each
        for copies in batch.copies:
            engine.start_copies(copies)
    replica.fail("bad step")
    replica.finish(engine.execute(batch))
    found = [replica.pool.look_up([key], Kind.OFFLINE).num_blocks for key in hash_chain(range(5, 100), 16)]
    assert found == [0, 0, 1, 0, 0], "what w had computed before, and has brought back itself"
    assert not any(request.num_blocks for request in replica.table)
    while replica.has_work:
        step(replica, engine)
    collect(replica, results)
    assert results == alone(requests)


def test_an_online_request_takes_blocks_and_their_owner_goes_on_afterwards_without_recomputing() -> None:
    replica, engine = make_replica(num_blocks=12, tokens=256)
    replica.submit(make_request("off", 150, 30, Kind.OFFLINE))
    for _ in range(3):
        step(replica, engine)
    replica.submit(make_request("on", 120, 8, Kind.ONLINE))
    while any(state.request_id == "on" for state in replica.tell()):
        assert step(replica, engine) == 1
        assert {state.request_id: state.num_kept_blocks is not None for state in replica.tell()}["off"]
    assert step(replica, engine) == 1, "it runs again in the first step after"
    while replica.has_work:
        step(replica, engine)
    assert (replica.totals.preemptions, replica.totals.prompt_tokens) == (0, 270)
    assert replica.totals.restored_slots == replica.totals.checkpointed_slots > 0


@pytest.mark.parametrize("seed", range(3))
def test_online_requests_never_wait_for_blocks_that_offline_requests_hold(seed: int) -> None:
    """Step by step they run as in a replica that has nothing else to do."""
    rng = random.Random(seed)
    (replica, engine), (other, other_engine) = make_replica(24), make_replica(24)
    for n in range(12):
        replica.submit(make_request(f"off-{n}", rng.randint(20, 150), 60, Kind.OFFLINE, 1000 * n))
    waiting = [make_request(f"on-{n}", rng.randint(1, 60), rng.randint(1, 30), Kind.ONLINE, 200 * n) for n in range(40)]
    while waiting or other.has_work:
        if waiting and len(other.table) < 3 and rng.random() < 0.5:
            request = waiting.pop()
            replica.submit(request)
            other.submit(request)
        batch, alone_batch = (
            replica.begin(replica.schedule(None, ANY, MODEL), 0),
            other.begin(other.schedule(None, ANY, MODEL), 0),
        )
        online = [each for each in batch.sequences if not each.fills_right]
        assert [(e.request_id, e.token_ids) for e in online] == [
            (e.request_id, e.token_ids) for e in alone_batch.sequences
        ]
        for each, its_engine, its_batch in ((replica, engine, batch), (other, other_engine, alone_batch)):
            if its_batch.sequences:
                each.finish(its_engine.execute(its_batch))
    assert replica.totals.pauses > 0 and replica.totals.finished_online == 40


@pytest.mark.parametrize(("swap_ms_per_slot", "is_ahead"), [(5.0, True), (0.0001, False)])
def test_what_comes_back_does_so_beside_a_step_where_others_would_wait_long(
    swap_ms_per_slot: float, is_ahead: bool
) -> None:
    replica, engine = make_replica(num_blocks=12, tokens=256, swap_ms_per_slot=swap_ms_per_slot)
    replica.submit(make_request("off", 100, 30, Kind.OFFLINE))
    step(replica, engine)
    replica.submit(make_request("on", 120, 8, Kind.ONLINE))
    while "on" in replica.table:
        step(replica, engine)
    replica.submit(make_request("small", 20, 8, Kind.ONLINE, 500))
    batch = replica.begin(replica.schedule(None, ANY, MODEL), 0)
    assert [each.request_id for each in batch.sequences] == (["small"] if is_ahead else ["small", "off"])
    (copies,) = replica.copies_ahead if is_ahead else batch.copies
    assert copies.restores and is_ahead is not bool(batch.copies)
    engine.start_copies(copies)
    replica.finish(engine.execute(batch))
    batch = replica.begin(replica.schedule(None, ANY, MODEL), 1)
    assert [each.request_id for each in batch.sequences] == ["small", "off"]
    assert list(batch.copies) == ([copies] if is_ahead else []) and not replica.copies_ahead
    replica.finish(engine.execute(batch))


def test_beside_an_online_request_an_offline_one_goes_on_and_then_moves() -> None:
    """Both have room in one block for some steps; where they meet, the offline request moves to a free block."""
    replica, engine = make_replica(num_blocks=3, tokens=256)
    requests = [make_request("off", 17, 24, Kind.OFFLINE), make_request("first", 10, 6, Kind.ONLINE, 500)]
    requests.append(make_request("beside", 4, 20, Kind.ONLINE, 900))
    together = 0
    results: Results = {}
    for request in requests:
        replica.submit(request)
        step(replica, engine)
    while replica.has_work:
        tables = {state.request_id: state for state in replica.tell()}
        ran = step(replica, engine)
        together += ran == len(tables) > 1
        collect(replica, results)
    assert together > 4 and engine.num_moved > 0 and replica.totals.preemptions == 0
    assert results == alone(requests)


def test_with_a_full_host_offline_requests_are_computed_anew() -> None:
    replica, engine = make_replica(num_blocks=12, num_host_slots=1, tokens=256)
    requests = [make_request("off", 150, 30, Kind.OFFLINE), make_request("on", 120, 8, Kind.ONLINE)]
    replica.submit(requests[0])
    step(replica, engine)
    replica.submit(requests[1])
    results: Results = {}
    while replica.has_work:
        step(replica, engine)
        collect(replica, results)
    assert replica.totals.preemptions == 1 and results == alone(requests)


def test_a_paused_request_can_be_aborted() -> None:
    replica, engine = make_replica(num_blocks=12, tokens=256)
    replica.submit(make_request("off", 150, 30, Kind.OFFLINE))
    step(replica, engine)
    replica.submit(make_request("on", 150, 20, Kind.ONLINE))
    step(replica, engine)
    replica.abort(["off"])
    while replica.has_work:
        step(replica, engine)
    assert replica.pool.num_free == 12
    replica.pool.check_integrity()


def test_scratch_batches_leave_nothing_behind() -> None:
    replica, _ = make_replica(num_blocks=24)
    shape = MeasureShape([PrefillChunk(20), PrefillChunk(30, 100)], [])
    with scratch_batch(shape, replica.pool, replica.limits, replica.spec) as batch:
        assert all(sequence.fills_right for sequence in batch.sequences)
    assert replica.pool.num_free == 24
    replica.pool.check_integrity()
