"""When a budget is searched for, what it is, and what is said about it."""

import random
from functools import cache

import msgspec
import pytest

from loadgen.report.slo import parse_slo, parse_slos
from services.profiler.settings import ProfilerSettings, start_budget_ms
from services.profiler.slo.job import SloJob
from services.profiler.slo.keeper import LIVE, USUAL_OFFLINE, PublishedModel, SloKeeper, rename
from services.profiler.slo.workload import ALL_MIXED, CAPACITY, Pools
from shared.latency.histogram import LatencyHistogram
from shared.protocol.executors import ExecutorCounters, ExecutorInfo, Heartbeat
from shared.protocol.offline.requests import OfflineLength
from shared.protocol.profiling.budgets import SloState
from shared.protocol.profiling.latency_models import LatencyModelRecord, LinearCoefficients
from shared.protocol.profiling.online import FinishedOnline, OnlineLatencies, OnlineServed
from shared.protocol.profiling.slo_profile import Knob, SloProfileRecord
from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import Strategy
from tests.services.profiler.profiling import KEY, executor_info
from tests.shared.latency.test_histogram import histogram_of

SLOS = "tbt_mean<=30ms, ttft_p99<=500ms"
COEFFICIENTS = (10.0, 0.1, 1e-4, 0.0, 0.0, 0.2, 0.2, 0.0)
BEGIN_S = 1000.0


def model(factor: float = 1.0, revision: int = 7) -> PublishedModel:
    coefficients = LinearCoefficients(tuple(factor * value for value in COEFFICIENTS))  # type: ignore[arg-type]
    return PublishedModel(LatencyModelRecord(KEY, coefficients, 100, 0.01, 0.0), revision)


def keeper(slos: str = SLOS, info: ExecutorInfo | None = None, **settings: float) -> SloKeeper:
    given = ProfilerSettings(slo=slos, **({"slo_min_requests": 50, "slo_min_s": 10.0} | settings))  # type: ignore[arg-type]
    return SloKeeper(info or executor_info(), parse_slos(slos), given, 0.0, BEGIN_S)


def serve(kept: SloKeeper, first_s: float, last_s: float, rate: float, prompt: int = 100, tbt_ms: float = 20.0) -> None:
    """Requests at random times from one second to another after the beginning."""
    rng, now_s, finished = random.Random(3), first_s, []
    while now_s < last_s:
        finished.append(FinishedOnline(BEGIN_S + now_s, prompt, 20))
        now_s += rng.expovariate(rate)
    tbt = LatencyHistogram()
    for _ in finished:
        tbt.add(tbt_ms)
    served = OnlineServed("executor-0", "g", 0.0, None, len(finished), finished, OnlineLatencies(tbt_ms=tbt))
    kept.online.on_served(last_s, served)


def found(kept: SloKeeper, now_s: float, why: str = "first") -> SloProfileRecord:
    """A real search over what is recorded."""
    job = kept.job([slo.expr for slo in parse_slos(SLOS)], BEGIN_S + now_s, why)
    assert job is not None
    record = searched(msgspec.json.encode(job))
    kept.on_found(record, now_s, job.model)
    return record


@cache
def searched(job: bytes) -> SloProfileRecord:
    return msgspec.json.decode(job, type=SloJob).run()


def test_an_slo_that_is_given_twice_is_one() -> None:
    """What was found is told in the stack's own spelling, of which there is one."""
    kept = keeper("tbt_mean<=30ms, TBT_mean <= 30 ms, itl_avg<=0.03s")
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=10.0)
    job = kept.job([slo.expr for slo in kept.slos], BEGIN_S + 20.0, "first")
    assert job is not None
    kept.on_found(rename(job.run(), kept.slos), 20.0, job.model)
    assert [verdict.expr for verdict in kept.status(20.0, BEGIN_S + 20.0).measured] == ["tbt_mean<=30ms"]


def test_the_start_is_what_the_slos_say_themselves() -> None:
    assert start_budget_ms(parse_slos("ttft_p99<=1s;tbt_p99<=50ms,tpot_mean<=40ms")) == 40.0
    assert start_budget_ms(parse_slos("tbt_mean<=1.05x")) is None
    assert parse_slos("") == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"slo": "fast"}, "write METRIC_STATISTIC<=BOUND"),
    ],
)
def test_settings_that_cannot_be_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(fields, ProfilerSettings)


def test_a_search_comes_when_model_and_workload_are_there() -> None:
    kept = keeper()
    assert kept.status(0.0, BEGIN_S).state is SloState.WAITING
    kept.model = model()
    assert kept.search_because(1.0, BEGIN_S + 1) == ""
    serve(kept, 0.0, 5.0, rate=5)
    status = kept.status(5.0, BEGIN_S + 5)
    assert status.state is SloState.RECORDING and "of 50 requests" in status.note and status.source == "slo-start"
    assert kept.budget().latency_budget_ms == 30.0
    assert kept.search_because(5.0, BEGIN_S + 5) == ""
    serve(kept, 5.0, 20.0, rate=5)
    assert kept.search_because(20.0, BEGIN_S + 20) == "first"
    kept.is_searching = True
    assert kept.search_because(21.0, BEGIN_S + 21) == ""


def test_a_recording_that_is_full_is_searched_with_however_short_it_is() -> None:
    kept = keeper(slo_min_s=60.0)
    kept.model = model()
    serve(kept, 0.0, 30.0, rate=150)
    assert kept.search_because(30.0, BEGIN_S + 30) == ""
    serve(kept, 30.0, 40.0, rate=150)
    assert kept.search_because(40.0, BEGIN_S + 40) == "first"
    job = kept.job(["tbt_mean<=30ms"], BEGIN_S + 40, "first")
    assert job is not None and len(job.requests) == CAPACITY


def test_what_is_found_becomes_the_budget_with_its_evidence() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    record = found(kept, 20.0)
    assert record.value is not None and record.reachable and len(record.trials) > 3
    assert (record.model_revision, record.knob, record.workload.source) == (7, Knob.BUDGET_MS, "recorded")
    assert record.workload.offline_input_tokens_mean == USUAL_OFFLINE[0].num_prompt_tokens
    assert record.workload.burstiness > 0.5
    budget = kept.budget()
    assert (budget.latency_budget_ms, budget.source) == (round(record.value, 3), "slo")
    status = kept.status(20.0, BEGIN_S + 20)
    assert status.state is SloState.PROFILED and status.profiled_ms == record.value
    assert [(v.expr, v.bound_ms) for v in status.measured] == [("tbt_mean<=30ms", 30.0), ("ttft_p99<=500ms", 500.0)]
    assert status.measured[0].value_ms == 20.0 and status.measured[0].met
    assert status.measured[1].value_ms is None


def test_the_last_backlog_that_was_seen_is_searched_with() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    kept.on_offline([OfflineLength(300, 10), OfflineLength(500, 30)])
    kept.on_offline([])
    record = found(kept, 20.0)
    workload = record.workload
    assert workload.offline == "backlog"
    assert (workload.offline_input_tokens_mean, workload.offline_output_tokens_mean) == (400, 20)
    assert not any(trial.backlog_ran_out for trial in record.trials)


def test_a_model_that_is_far_off_makes_no_slower_machine() -> None:
    """Its error is noise, whose mean is what it says: with 40%, as on a busy CPU, steps took 13% longer than that."""
    best_ms = []
    for mape in (0.0, 0.4):
        kept = keeper("tbt_mean<=60ms")
        kept.model = PublishedModel(msgspec.structs.replace(model().record, mape=mape), 7)
        serve(kept, 0.0, 40.0, rate=5)
        job = kept.job(["tbt_mean<=60ms"], BEGIN_S + 40.0, "first")
        assert job is not None
        best_ms.append(job.run().best[0].value_ms)
    assert best_ms[1] == pytest.approx(best_ms[0], rel=0.03)


def test_an_slo_that_cannot_be_kept_lets_no_offline_work_in_and_says_the_best() -> None:
    kept = keeper("tbt_mean<=5ms")
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    job = kept.job(["tbt_mean<=5ms"], BEGIN_S + 20, "first")
    assert job is not None
    kept.on_found(job.run(), 20.0, job.model)
    budget, status = kept.budget(), kept.status(20.0, BEGIN_S + 20)
    assert (budget.latency_budget_ms, budget.source) == (0.0, "slo")
    assert status.state is SloState.UNREACHABLE
    assert "not kept even without offline work: tbt_mean<=5ms (at best 1" in status.note


def test_an_slo_that_cannot_be_kept_leaves_the_budget_of_steps_without_online_requests() -> None:
    info = msgspec.structs.replace(executor_info(), strategy=Strategy(idle_budget_ms=80.0))
    kept = keeper("tbt_mean<=5ms", info)
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    job = kept.job(["tbt_mean<=5ms"], BEGIN_S + 20, "first")
    assert job is not None
    kept.on_found(job.run(), 20.0, job.model)
    budget = kept.budget()
    assert (budget.latency_budget_ms, budget.idle_budget_ms) == (0.0, 80.0)


def test_what_a_live_search_found_holds_until_something_changes_after_it() -> None:
    """Whatever it was searched with, and however short that was: what was measured then is not compared."""
    kept = keeper(slo_check_s=60.0)
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    record = found(kept, 20.0)
    sent = msgspec.structs.replace(record.workload, requests=40, duration_s=4.0, input_tokens_mean=900.0)
    live = msgspec.structs.replace(record, value=25.0, runs_on=LIVE, workload=sent, model_revision=3)
    kept.on_found(live, 20.0)
    serve(kept, 20.0, 35.0, rate=5)
    assert kept.search_because(81.0, BEGIN_S + 35) == ""
    serve(kept, 35.0, 200.0, rate=5)
    kept.model = model(1.02, revision=8)
    assert kept.search_because(200.0, BEGIN_S + 200) == ""
    assert kept.budget().latency_budget_ms == 25.0
    kept.model = model(1.2, revision=9)
    assert "model drift: a batch is predicted at" in kept.search_because(300.0, BEGIN_S + 200)
    kept.on_found(live, 300.0)
    assert kept.search_because(400.0, BEGIN_S + 200) == ""
    serve(kept, 200.0, 400.0, rate=30)
    assert "workload drift: requests/s" in kept.search_because(500.0, BEGIN_S + 400)


def test_drift_of_workload_and_model_asks_for_another_search() -> None:
    kept = keeper(slo_check_s=60.0)
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    assert kept.search_because(20.0, BEGIN_S + 20) == "first"
    record = found(kept, 20.0)
    serve(kept, 20.0, 35.0, rate=30)
    assert kept.search_because(35.0, BEGIN_S + 35) == ""  # not looked at yet
    assert "workload drift: requests/s" in kept.search_because(81.0, BEGIN_S + 35)
    workload = kept.online.workload(BEGIN_S + 35)
    assert workload is not None
    kept.on_found(msgspec.structs.replace(record, workload=workload.facts()), 81.0, model().record)
    kept.model = model(1.02, revision=8)
    assert kept.search_because(200.0, BEGIN_S + 35) == ""
    kept.model = model(1.2, revision=9)
    assert "model drift: a batch is predicted at" in kept.search_because(300.0, BEGIN_S + 35)
    left = msgspec.structs.replace(model().record, drifts=1, drift_ratio=1.3)
    kept.model = PublishedModel(left, revision=10)
    assert "model drift: measured times have left the model by 1.3" in kept.search_because(400.0, BEGIN_S + 35)


def test_a_recording_that_is_three_times_as_long_is_searched_again() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    found(kept, 20.0)
    serve(kept, 20.0, 61.0, rate=5)
    assert "longer recording: 61 s instead of 20 s" in kept.search_because(90.0, BEGIN_S + 61)


@pytest.mark.slow
def test_a_cut_outlives_the_next_search() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    profiled_ms = found(kept, 20.0).value
    assert profiled_ms is not None
    kept.online.take()
    serve(kept, 20.0, 40.0, rate=10, tbt_ms=45.0)
    kept.online._offline_ran = True
    kept.correct(40.0)
    cut = kept.budget()
    assert cut.source == "feedback" and cut.latency_budget_ms == pytest.approx(profiled_ms * 30 / 45, rel=0.01)
    again_ms = found(kept, 41.0, "asked").value
    assert again_ms is not None
    assert kept.budget().latency_budget_ms == pytest.approx(min(again_ms, cut.latency_budget_ms), rel=0.01)


def test_a_failed_search_is_said_and_tried_again_at_the_next_look() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    kept.search_because(20.0, BEGIN_S + 20)
    kept.on_failed("out of luck")
    status = kept.status(20.0, BEGIN_S + 20)
    assert status.state is SloState.FAILED and "out of luck" in status.note
    assert kept.search_because(21.0, BEGIN_S + 21) == "first"
    kept.on_failed("out of luck")
    assert kept.search_because(22.0, BEGIN_S + 22) == ""


def test_a_profile_of_another_strategy_or_other_limits_is_searched_for_again() -> None:
    """After a restart its budget is used at once; it stayed for good, as long as workload and model did."""
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    record, why = found(kept, 20.0), {}
    for name, info in {
        "same": executor_info(num_blocks=1900),  # by the memory that was free
        "preset": executor_info(strategy=Strategy.of("blendserve")),
        "knob": executor_info(strategy=Strategy.of(offline_order="fcfs")),
        "blocks": executor_info(num_blocks=500),
    }.items():
        again = keeper(info=info)
        again.model = model()
        serve(again, 0.0, 20.0, rate=5)
        again.on_found(rename(record, again.slos), 20.0)
        assert again.budget().latency_budget_ms == kept.budget().latency_budget_ms
        why[name] = again.search_because(81.0, BEGIN_S + 20), again.search_because(142.0, BEGIN_S + 20)
    assert why.pop("same") == ("", "")
    assert {name: each[0] for name, each in why.items()} == {
        "preset": "another executor: preset blendserve instead of hygen",
        "knob": "another executor: offline_order fcfs instead of the preset's",
        "blocks": "another executor: kv_tokens 8000 instead of 32000",
    }
    old = msgspec.structs.replace(record, executor={})  # of a version that did not note it
    kept.on_found(old, 20.0)
    kept.info = executor_info(num_blocks=500)
    assert kept.search_because(81.0, BEGIN_S + 20) == ""


def beat(kept: SloKeeper, now_s: float, executor_id: str, role: Role, *held_ms: float) -> None:
    """``held_ms``: of what has left it since the one before."""
    info = msgspec.structs.replace(kept.info, executor_id=executor_id, role=role, kv_link="sim")
    handover_ms = histogram_of([*held_ms])
    kept.online.on_heartbeat(now_s, Heartbeat(info, ExecutorCounters(), False, 0, 0, 0, 0, 10, handover_ms=handover_ms))


def keeper_of_pools() -> SloKeeper:
    """Of three executors."""
    kept = keeper("tbt_p99<=60ms")
    kept.model = model()
    for executor_id, role in (("strict", Role.STRICT), ("one", Role.RELAXED), ("other", Role.RELAXED)):
        beat(kept, 0.0, executor_id, role)
    for seed, executor_id in enumerate(("strict", "one")):  # it ends where it began where nobody takes it
        rng = random.Random(seed)
        arrivals = sorted(BEGIN_S + rng.uniform(0.0, 20.0) for _ in range(60))
        finished = [FinishedOnline(arrival_s, 1500, 20) for arrival_s in arrivals]
        kept.online.on_served(20.0, OnlineServed(executor_id, "g", 0.0, None, len(finished), finished))
    return kept


def test_executors_of_pools_are_searched_for_together() -> None:
    """Requests end on the strict one, whose prompts others compute: alone it seemed to keep no SLO, so that no offline
    work ran beside online requests."""
    kept = keeper_of_pools()
    job = kept.job(["tbt_p99<=60ms"], BEGIN_S + 20, "first")
    assert job is not None and len(job.requests) == 120 and job.pools == Pools(3, 1)
    record = job.run()
    assert not msgspec.structs.replace(job, pools=ALL_MIXED).run().reachable
    assert record.reachable and record.value is not None
    kept.on_found(record, 20.0, job.model)
    for executor_id in ("strict", "one"):
        beat(kept, 100.0, executor_id, Role.MIXED if executor_id == "strict" else Role.RELAXED)
    assert "another executor: strict none instead of 1" in kept.search_because(100.0, BEGIN_S + 20)


def test_while_a_request_moves_it_has_no_tokens() -> None:
    """One in twenty of theirs is late by a move. The search had them move in no time, and offline work ran where
    nothing could keep the SLO."""
    kept = keeper_of_pools()
    beat(kept, 1.0, "one", Role.RELAXED, *[50.0] * 20, *[400.0] * 5)
    beat(kept, 2.0, "other", Role.RELAXED, *[50.0] * 20)
    job = kept.job(["tbt_p99<=60ms"], BEGIN_S + 20, "first")
    assert job is not None and job.pools.handover_ms == pytest.approx(50.0, rel=0.02)
    record = msgspec.json.decode(msgspec.json.encode(job), type=SloJob).run()
    assert not record.reachable
    (alone,) = record.trials
    assert 60.0 < (alone.verdicts[0].value_ms or 0.0) < 90.0
    long_after_s = 650.0
    for executor_id, role in (("strict", Role.STRICT), ("one", Role.RELAXED)):
        beat(kept, long_after_s, executor_id, role)
    assert kept.online.pools == Pools(2, 1)


@pytest.mark.parametrize("strategy", [Strategy.of("hygen-star", offline_qps=1.0), Strategy.of("bros")])
def test_a_strategy_without_a_latency_budget_is_searched_for_none(strategy: Strategy) -> None:
    """What a search would find for it, such as an offline rate, is none: it was searched for again and again."""
    kept = keeper(info=msgspec.structs.replace(executor_info(), strategy=strategy))
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    assert kept.search_because(20.0, BEGIN_S + 20) == ""
    status = kept.status(20.0, BEGIN_S + 20)
    assert status.state is SloState.FAILED
    assert status.note == f"preset {strategy.preset} has no latency budget to keep them"
    kept.info = executor_info()  # it came back with another one
    assert kept.search_because(21.0, BEGIN_S + 21) == "first"


def test_a_fixed_budget_gives_way_to_slos_and_it_is_said() -> None:
    """Services that are started one by one may have both."""
    kept = keeper(info=msgspec.structs.replace(executor_info(), strategy=Strategy.of("hygen", budget_ms=12.5)))
    status = kept.status(0.0, BEGIN_S)
    assert (kept.budget().latency_budget_ms, status.state) == (30.0, SloState.WAITING)
    assert status.note == "budget_ms 12.5 of its executors gives way to the SLOs: leave one of them out"
    kept.on_failed("no core")
    assert kept.status(0.0, BEGIN_S).note == f"the search failed: no core; {status.note}"
    kept.info = executor_info()
    assert kept.status(0.0, BEGIN_S).note == "the search failed: no core"


def test_a_record_of_the_same_slos_in_another_spelling_is_ours() -> None:
    kept = keeper()
    kept.model = model()
    serve(kept, 0.0, 20.0, rate=5)
    record = found(kept, 20.0)
    spelled = rename(record, [parse_slo("TTFT_p99 <= 500 ms"), parse_slo("tbt_mean<= 30ms")])
    assert spelled.slos == ["TTFT_p99 <= 500 ms", "tbt_mean<= 30ms"]
    assert [verdict.expr for verdict in spelled.best] == ["tbt_mean<= 30ms", "TTFT_p99 <= 500 ms"]
