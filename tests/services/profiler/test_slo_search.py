"""The search for the largest knob value that keeps every SLO, over outcomes that are functions of it."""

import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import WorkloadError
from loadgen.report.slo import Slo, parse_slo
from services.profiler.slo.keeper import why_unreachable
from services.profiler.slo.search import EXTRA_RUNS, LOOK_BEYOND, Grid, SloSearch, Span, TrialOutcome
from services.profiler.slo.simulated import knob_of, search_slos
from services.profiler.slo.table import answer
from shared.protocol.profiling.slo_profile import Knob, WorkloadFacts
from shared.scheduling.strategy import PRESETS
from tests.services.profiler.slo_outcomes import FunctionTrials, make_outcome

SPAN = Span(12.0, 300.0)
GRID = Grid(0.05)
VALUES = [GRID.value(index) for index in range(GRID.at_least(12.0), GRID.at_least(300.0) + 1)]


def slos(*exprs: str) -> list[Slo]:
    return [parse_slo(expr) for expr in exprs]


def linear(value: float) -> TrialOutcome:
    """TBT is 10 ms alone and grows with the budget, TTFT twice as fast."""
    return make_outcome(10 + value, 100 + 2 * value, tokens_per_s=100 * value)


@given(st.floats(1e-3, 1e6), st.sampled_from([0.001, 0.04, 0.05, 0.5, 1.0]))
def test_the_grid_is_even_and_brackets_every_value(value: float, precision: float) -> None:
    grid = Grid(precision)
    index = grid.at_least(value)
    assert grid.value(index - 1) < value <= grid.value(index)
    assert grid.value(index) / grid.value(index - 1) == pytest.approx(1 + precision, rel=2e-4)
    assert grid.at_least(grid.value(index)) == index


@given(st.floats(5.0, 400.0))
def test_a_monotone_limit_is_found_to_the_next_value(limit: float) -> None:
    trials = FunctionTrials(linear, SPAN)
    search = search_slos(trials, slos(f"tbt_p99<={10 + limit}ms"))
    kept = [value for value in VALUES if 10 + value <= 10 + limit]
    assert search.value == (kept[-1] if kept else None)
    assert search.reachable
    assert len(trials.ran) <= 2 + math.ceil(math.log2(len(VALUES))) + LOOK_BEYOND
    assert [trial.value for trial in search.trials] == trials.ran


@given(st.lists(st.booleans(), min_size=len(VALUES), max_size=len(VALUES)))
def test_whatever_the_runs_say_the_answer_kept_the_slo_and_no_larger_run_did(keeps: list[bool]) -> None:
    by_value = dict(zip(VALUES, keeps, strict=True))
    trials = FunctionTrials(lambda value: make_outcome(10 if by_value.get(value, True) else 99), SPAN)
    search = search_slos(trials, slos("tbt_mean<=50ms"))
    assert len(trials.ran) == len(set(trials.ran)) <= 2 + len(VALUES).bit_length() + EXTRA_RUNS
    tried = [value for value in trials.ran if value > 0]
    assert search.value == max((value for value in tried if by_value[value]), default=None)
    assert {trial.value: trial.met for trial in search.trials if trial.value} == {v: by_value[v] for v in tried}


@given(st.integers(8, len(VALUES) - 8), st.randoms(use_true_random=False))
def test_blips_cost_little(limit: int, rng: random.Random) -> None:
    """Values under the limit that fail now and then, never two of them next to each other."""
    blips = {index for index in range(0, limit - 3, 4) if rng.random() < 0.3}
    keeps = {value: index < limit and index not in blips for index, value in enumerate(VALUES)}
    trials = FunctionTrials(lambda value: make_outcome(10 if keeps.get(value, True) else 99), SPAN)
    search = search_slos(trials, slos("tbt_mean<=50ms"))
    assert search.value == VALUES[limit - 1]


def test_what_an_unbounded_run_keeps_needs_no_search() -> None:
    trials = FunctionTrials(linear, SPAN)
    search = search_slos(trials, slos("tbt_mean<=1s", "ttft_p99<=100x"))
    assert trials.ran == [0.0, VALUES[-1]]
    assert search.value == VALUES[-1]


def test_the_tightest_of_several_slos_decides() -> None:
    trials = FunctionTrials(linear, SPAN)
    wide, tight = slos("tbt_p50<=110ms"), slos("ttft_p99<=200ms")
    both = search_slos(trials, [*wide, *tight])
    assert both.value == search_slos(FunctionTrials(linear, SPAN), tight).value
    assert both.value is not None and 50 / 1.05 <= both.value <= 50
    failed = next(trial for trial in both.trials if not trial.met)
    assert [verdict.met for verdict in failed.verdicts] == [False, False]
    assert [verdict.met for verdict in both.trials[-1].verdicts] == [True, False]


def test_relative_slos_compare_with_the_run_without_offline_work() -> None:
    search = search_slos(FunctionTrials(linear, SPAN), slos("tbt_mean<=4x"))
    assert search.value is not None and 30 / 1.05 <= search.value <= 30
    assert search.best[0].bound_ms == pytest.approx(40.0) and search.best[0].value_ms == pytest.approx(10.0)


@pytest.mark.parametrize("expr", ["tbt_mean<=9ms", "tbt_mean<=0.9x", "tbt_mean<10ms"])
def test_unreachable_is_said_with_the_best_and_nothing_is_searched(expr: str) -> None:
    trials = FunctionTrials(linear, SPAN)
    search = search_slos(trials, slos("ttft_mean<=1s", expr))
    assert trials.ran == [0.0]
    assert (search.reachable, search.value) == (False, None)
    assert [verdict.met for verdict in search.best] == [True, False]
    assert search.best[1].value_ms == 10.0


def test_reachable_only_without_offline_work() -> None:
    search = search_slos(FunctionTrials(linear, SPAN), slos("tbt_mean<=11ms"))
    assert (search.reachable, search.value) == (True, None)
    assert min(trial.value for trial in search.trials[1:]) == VALUES[0]


def test_more_errors_than_alone_keep_no_slo() -> None:
    trials = FunctionTrials(lambda value: make_outcome(10, errors=2 + (value > 100)), SPAN)
    search = search_slos(trials, slos("tbt_p50<=20ms"))
    assert search.value is not None and 100 / 1.05 <= search.value <= 100


@pytest.mark.parametrize("expr", ["tbt_mean<=20ms", "tbt_p99<=20ms", "tbt_mean<=1.5x", "tbt_p99<=1.5x"])
def test_what_fails_without_offline_work_is_infinitely_late(expr: str) -> None:
    trials = FunctionTrials(lambda value: make_outcome(10, errors=2), SPAN)
    search = search_slos(trials, slos("tbt_p50<=1s", expr))
    assert trials.ran == [0.0]
    assert (search.reachable, search.value) == (False, None)
    assert [(verdict.value_ms, verdict.met) for verdict in search.best] == [(10.0, True), (None, False)]
    record = search.record("key", WorkloadFacts("trace.csv", 100, 60.0, 10.0, 10.0), "simulator", 1.0)
    why = f"{expr} (no figure), 2 of 100 online requests failed"
    assert answer(record) == f"cannot be kept even without offline work: {why}"
    assert why_unreachable(record) == f"not kept even without offline work: {why}"


@pytest.mark.parametrize("expr", ["tbt_p99<=20ms", "tbt_mean<=1.5x"])
def test_requests_without_what_an_slo_is_of_say_nothing_of_it(expr: str) -> None:
    """They are no reason to keep offline work out."""
    outcome = make_outcome(10)
    one_token_each = replace(outcome, online=msgspec.structs.replace(outcome.online, tbt_ms=None))
    trials = FunctionTrials(lambda value: one_token_each, SPAN)
    with pytest.raises(WorkloadError, match=f"no figure for {expr}"):
        search_slos(trials, slos("ttft_p99<=1s", expr))
    assert trials.ran == [0.0]
    assert search_slos(FunctionTrials(lambda value: one_token_each, SPAN), slos("ttft_p99<=1s")).value == VALUES[-1]


def test_as_many_failures_as_a_percentile_leaves_out_keep_it() -> None:
    trials = FunctionTrials(lambda value: make_outcome(10 + value, errors=1, num_requests=1000), SPAN)
    search = search_slos(trials, slos("tbt_p99<=60ms"))
    assert search.value is not None and 50 / 1.05 <= search.value <= 50


def test_failures_without_samples_keep_nothing() -> None:
    """Of a report that tells percentiles, and nothing of what is behind them."""
    outcome = replace(make_outcome(10, errors=1, num_requests=1000), samples=None)
    assert not outcome.judge(0.0, slos("tbt_p99<=60ms"), outcome).met


def test_only_failures_beside_offline_work_are_told() -> None:
    trials = FunctionTrials(lambda value: make_outcome(10, errors=int(value > 0)), SPAN)
    search = search_slos(trials, slos("tbt_p50<=20ms"))
    record = search.record("key", WorkloadFacts("trace.csv", 100, 60.0, 10.0, 10.0), "simulator", 1.0)
    assert (record.reachable, record.value) == (True, None)
    assert why_unreachable(record) == "not kept with any offline work: 1 of 100 online requests failed"


def test_searches_share_the_runs_of_a_workload() -> None:
    trials = FunctionTrials(linear, SPAN)
    first = search_slos(trials, slos("tbt_mean<=70ms"))
    num_ran = len(trials.ran)
    assert search_slos(trials, slos("tbt_mean<=70ms")).value == first.value
    assert len(trials.ran) == num_ran
    second = search_slos(trials, slos("tbt_mean<=72ms"))
    assert second.value == search_slos(FunctionTrials(linear, SPAN), slos("tbt_mean<=72ms")).value
    assert len(trials.ran) <= num_ran + LOOK_BEYOND + 1
    assert len(trials.ran) == len(set(trials.ran))


def test_an_interrupted_search_has_what_is_known() -> None:
    search = SloSearch(slos("tbt_mean<=60ms"), Knob.BUDGET_MS)
    facts = WorkloadFacts("trace.csv", 100, 60.0, 10.0, 10.0)
    assert search.next_value() == 0.0 and search.record("key", facts, "simulator", 1.0).trials == []
    search.tell(0.0, linear(0.0))
    assert search.next_value() is None
    search.open(SPAN)
    for _ in range(3):
        value = search.next_value()
        assert value is not None
        search.tell(value, linear(value))
    record = search.record("key", facts, "simulator", 1.0)
    assert len(record.trials) == 4 and record.reachable
    assert record.value == max(trial.value for trial in record.trials if trial.met)


def test_presets_have_their_knob() -> None:
    assert knob_of(PRESETS["hygen"]) is Knob.BUDGET_MS
    assert knob_of(PRESETS["hygen-star"]) is Knob.OFFLINE_QPS
    with pytest.raises(ValueError, match=r"preset sarathi\+\+ has neither"):
        knob_of(PRESETS["sarathi++"])


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="precision of a search must be from"):
        SloSearch(slos("tbt_mean<=1s"), Knob.BUDGET_MS, 0.0)
    with pytest.raises(ValueError, match="at least one SLO"):
        SloSearch([], Knob.BUDGET_MS)
