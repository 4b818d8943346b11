"""What a screen shows of heartbeats, answers, budgets and batches that came."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import EngineSpec, ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.offline.batches import OPEN_STATUSES, BatchRecord, BatchStatus, RequestCounts
from shared.protocol.profiling.budgets import BudgetRecord, BudgetSource
from shared.protocol.profiling.online import OnlineLatencies, OnlineServed
from shared.scheduling.placement.role import Role
from shared.watch.stack_watch import BATCH_RATE_S, GONE_S, MAX_ENDED, StackWatch, ended_at

SPEC = EngineSpec("m", "sim", "cpu", "float16", 256, 49152, 16, 64, (2,))
INFO = ExecutorInfo("executor-0", "first", 1, "key", SPEC, 8, 512)
BUDGET = BudgetRecord("key", 30.0, BudgetSource.FIXED, idle_budget_ms=80.0)


def beat(info: ExecutorInfo = INFO, online: int = 0, draining: bool = False, **totals: float) -> Heartbeat:
    counters = ExecutorCounters()
    for name, total in totals.items():
        setattr(counters, name, total)
    return Heartbeat(info, counters, draining, 0, online, 0, 0, 64)


def samples(*latencies_ms: float) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency_ms in latencies_ms:
        histogram.add(latency_ms)
    return histogram


def batch(
    batch_id: str,
    status: BatchStatus = "in_progress",
    done: int = 0,
    owner: str = "",
    created_at: int = 0,
    **times: int,
) -> BatchRecord:
    counts = RequestCounts(100, done, 0)
    return BatchRecord(
        batch_id, "/v1/completions", "file", "24h", created_at, 0, status, request_counts=counts, owner=owner, **times
    )


def sees_all(record: BatchRecord) -> bool:
    return True


def owned_by(owner: str) -> Callable[[BatchRecord], bool]:
    return lambda record: record.owner == owner


def test_rates_of_an_executor_are_those_of_its_totals() -> None:
    watch = StackWatch()
    watch.on_heartbeat(100.0, replace(beat(), step_ms=samples(10.0)))
    (view,) = watch.executors(100.0)
    rates = (view.steps_per_s, view.busy_share, view.online_tokens_per_s, view.offline_tokens_per_s)
    assert rates == (None, None, None, None) and view.online_slowdown is None
    totals = {"steps": 40, "busy_s": 1.5, "online_tokens": 20, "offline_tokens": 100}
    last = replace(beat(**totals, online_s=6.0, online_alone_s=4.0), step_ms=samples(30.0))
    watch.on_heartbeat(102.0, last)
    (view,) = watch.executors(102.0)
    rates = (view.steps_per_s, view.busy_share, view.online_tokens_per_s, view.offline_tokens_per_s)
    assert rates == (20.0, 0.75, 10.0, 50.0) and view.online_slowdown == 1.5
    assert view.beat is last and view.step_ms.mean_ms() == 20.0


def test_an_executor_is_never_busy_for_more_than_all_the_time() -> None:
    watch = StackWatch()
    watch.on_heartbeat(0.0, beat())
    watch.on_heartbeat(1.0, beat(busy_s=1.3))
    assert watch.executors(1.0)[0].busy_share == 1.0


@pytest.mark.parametrize(("online_s", "alone_s"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)])
def test_a_slowdown_that_is_not_measured_is_not_told(online_s: float, alone_s: float) -> None:
    watch = StackWatch()
    watch.on_heartbeat(0.0, beat())
    watch.on_heartbeat(1.0, beat(online_s=online_s, online_alone_s=alone_s))
    assert watch.executors(1.0)[0].online_slowdown is None


def test_a_new_incarnation_begins_anew() -> None:
    watch = StackWatch()
    for second in range(3):
        watch.on_heartbeat(float(second), beat(steps=10 * second))
    assert watch.has_beaten(["executor-0"], 3)
    watch.on_heartbeat(3.0, beat(replace(INFO, epoch="second"), steps=1000))
    (view,) = watch.executors(3.0)
    assert view.steps_per_s is None and view.beat.info.epoch == "second"
    assert watch.has_beaten(["executor-0"], 1) and not watch.has_beaten(["executor-0"], 2)
    assert not watch.has_beaten(["executor-0", "executor-1"], 1) and watch.has_beaten([], 1)


def test_whoever_is_silent_is_shown_no_more() -> None:
    watch = StackWatch()
    for second, name in enumerate(("b", "a")):
        watch.on_heartbeat(float(second), beat(replace(INFO, executor_id=name)))
    assert [each.beat.info.executor_id for each in watch.executors(GONE_S - 0.1)] == ["a", "b"]
    assert [each.beat.info.executor_id for each in watch.executors(GONE_S)] == ["a"]
    assert watch.executors(1.0 + GONE_S) == [] and not watch.has_beaten(["a"], 1)


def test_roles_are_those_beside_the_others_that_live() -> None:
    watch = StackWatch()
    for name, role in (("relaxed", Role.RELAXED), ("strict", Role.STRICT)):
        watch.on_heartbeat(0.0, beat(replace(INFO, executor_id=name, role=role, kv_link="nixl")))
    assert [each.acts_as for each in watch.executors(0.0)] == [Role.RELAXED, Role.STRICT]
    watch.on_heartbeat(3.0, beat(replace(INFO, executor_id="relaxed", role=Role.RELAXED, kv_link="nixl")))
    assert [each.acts_as for each in watch.executors(6.0)] == [Role.MIXED]


@pytest.mark.parametrize(
    ("budget", "online", "is_interruptible", "shown_ms"),
    [
        (None, 0, False, None),
        (BUDGET, 2, False, 30.0),
        (BUDGET, 0, False, 80.0),
        (BUDGET, 0, True, 80.0),
        (replace(BUDGET, idle_budget_ms=10.0), 0, False, 30.0),
        (replace(BUDGET, idle_budget_ms=0.0), 0, False, 30.0),
        (replace(BUDGET, idle_budget_ms=0.0), 0, True, None),
        (replace(BUDGET, idle_budget_ms=0.0, tolerance=0.1), 0, False, None),
        (replace(BUDGET, tolerance=0.1), 0, False, 80.0),
        (replace(BUDGET, tolerance=0.1), 1, False, None),
    ],
)
def test_the_budget_of_a_step_with_what_is_held_now(
    budget: BudgetRecord | None, online: int, is_interruptible: bool, shown_ms: float | None
) -> None:
    watch = StackWatch()
    watch.on_budget("other", replace(BUDGET, latency_budget_ms=1.0))
    watch.on_budget("key", budget or BUDGET)
    if budget is None:
        watch.on_budget("key", None)
        watch.on_budget("key", None)
    watch.on_heartbeat(0.0, beat(replace(INFO, spec=replace(SPEC, is_interruptible=is_interruptible)), online))
    assert [each.budget_ms for each in watch.executors(0.0)] == [shown_ms]
    assert list(watch.view(0.0).budgets) == ["other"] if budget is None else ["key", "other"]
    waiting = replace(beat(), online_waiting=online)
    watch.on_heartbeat(0.0, replace(waiting, info=replace(INFO, spec=replace(SPEC, is_interruptible=is_interruptible))))
    assert [each.budget_ms for each in watch.executors(0.0)] == [shown_ms], "those that wait count as well"


def test_what_users_got_in_the_last_minute_and_in_the_last_seconds() -> None:
    watch = StackWatch()
    for second, latency_ms in ((0.0, 100.0), (50.0, 300.0)):
        watch.on_served(second, OnlineServed("executor-0", "gateway", latencies=OnlineLatencies(samples(latency_ms))))
    assert watch.view(50.0).online.ttft_ms.mean_ms() == 200.0
    assert watch.recent(50.0).ttft_ms.mean_ms() == watch.view(60.0).online.ttft_ms.mean_ms() == 300.0
    assert watch.recent(60.0).is_empty and watch.view(110.0).online.is_empty


def test_an_open_batch_with_what_is_left_of_it() -> None:
    watch = StackWatch()
    watch.on_batch(0.0, "b", batch("b", done=10, created_at=5))
    (view,) = watch.batches(5.0, sees_all)
    assert (view.done, view.lines_per_s, view.left_s) == (10, None, None)
    watch.on_batch(10.0, "b", batch("b", done=30, created_at=5))
    watch.on_batch(10.0, "a", batch("a", created_at=7))
    watch.on_batch(10.0, "c", batch("c", created_at=5))
    view, *others = watch.batches(10.0, sees_all)
    assert (view.record.id, view.done, view.lines_per_s, view.left_s) == ("b", 30, 2.0, 35.0)
    assert [each.record.id for each in others] == ["c", "a"], "as they were made"
    assert watch.lines_left() == 70 + 100 + 100
    watch.on_batch(10.0 + BATCH_RATE_S, "b", batch("b", done=30, created_at=5))
    watch.on_batch(10.0 + BATCH_RATE_S, "c", None)
    view, *others = watch.batches(80.0, sees_all)
    assert (view.lines_per_s, view.left_s) == (0.0, None)
    assert [each.record.id for each in others] == ["a"]
    only_a = watch.batches(80.0, lambda record: record.id == "a")
    assert only_a == others == watch.view(80.0, lambda record: record.id == "a").batches


def test_a_batch_that_stands_still_has_no_end_in_sight() -> None:
    watch = StackWatch()
    for second, done in ((0.0, 0), (10.0, 20)):
        watch.on_batch(second, "b", batch("b", done=done))
    views = [watch.batches(now_s, sees_all)[0] for now_s in (20.0, 9.0 + BATCH_RATE_S, 10.0 + BATCH_RATE_S, 86_400.0)]
    assert [view.lines_per_s for view in views] == [1.0, 20 / 69, 0.0, 0.0]
    assert [view.left_s for view in views] == [80.0, 276.0, None, None]


def test_a_batch_whose_lines_are_not_counted_yet_has_no_end_in_sight() -> None:
    watch = StackWatch()
    for second in (0.0, 1.0):
        counts = RequestCounts(0, int(second), 0)
        watch.on_batch(second, "b", replace(batch("b", "validating"), request_counts=counts))
    assert [each.left_s for each in watch.batches(1.0, sees_all)] == [None]


STATUSES = st.sampled_from(["in_progress", "completed", "failed", "expired", "cancelled", None])
HEARD = st.lists(st.tuples(st.integers(0, 19), STATUSES, st.integers(0, 6)), max_size=60)


@given(HEARD)
def test_the_batches_that_ended_last_are_kept_for_each_owner(heard: list[tuple[int, BatchStatus | None, int]]) -> None:
    """Against a list of all that was heard; batches of even numbers are Ann's, the others are Bob's."""
    watch, order = StackWatch(), dict[str, BatchRecord]()
    for number, status, ended_s in heard:
        name, owner = f"b{number}", "ann" if number % 2 == 0 else "bob"
        times = {} if status is None or status == "in_progress" else {f"{status}_at": ended_s}
        record = None if status is None else batch(name, status, owner=owner, **times)
        watch.on_batch(0.0, name, record)
        order.pop(name, None)
        if record is not None:
            order[name] = record
        of_owner = [each.id for each in order.values() if each.owner == owner and each.status not in OPEN_STATUSES]
        for forgotten in of_owner[:-MAX_ENDED]:
            del order[forgotten]
    kept = [each for each in order.values() if each.status not in OPEN_STATUSES]
    newest = sorted(kept, key=lambda each: (ended_at(each), each.id), reverse=True)
    assert watch.ended(sees_all) == newest[:MAX_ENDED] == watch.view(0.0).ended
    for owner in ("ann", "bob"):
        assert watch.ended(owned_by(owner)) == [each for each in newest if each.owner == owner]
    assert {each.record.id for each in watch.batches(0.0, sees_all)} == {
        each.id for each in order.values() if each.status in OPEN_STATUSES
    }


def test_what_became_of_batches_is_counted_beside_what_is_shown() -> None:
    watch = StackWatch()
    for number in range(MAX_ENDED + 2):
        watch.on_batch(0.0, f"b{number}", batch(f"b{number}"))
        watch.on_batch(1.0, f"b{number}", batch(f"b{number}", "completed", done=100))
    assert watch.batch_counts.ended["completed"] == MAX_ENDED + 2 > len(watch.ended(sees_all))


def test_owners_whose_batches_are_gone_take_no_room() -> None:
    watch = StackWatch()
    for number in range(100):
        watch.on_batch(0.0, f"b{number}", batch(f"b{number}", "completed", owner=f"owner-{number}"))
        watch.on_batch(1.0, f"b{number}", None)
    assert not watch._num_ended


def test_when_a_batch_ended() -> None:
    assert ended_at(batch("b")) == 0
    for name in ("completed_at", "failed_at", "expired_at", "cancelled_at"):
        assert ended_at(batch("b", **{name: 7})) == 7
    assert ended_at(batch("b", failed_at=9, cancelled_at=7)) == 9
