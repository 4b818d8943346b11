"""Searching in the simulator: what is found keeps the SLOs when it is simulated again."""

import math
import random
from dataclasses import replace

import pytest

from loadgen.errors import WorkloadError
from loadgen.progress import NoProgress
from loadgen.replay import ReplayPlan
from loadgen.report.report import Report
from loadgen.report.slo import parse_slo
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from loadgen.workload.traces import TraceRequest
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.simulation import Simulation
from services.profiler.simulation.workload import SimulatedWorkload
from services.profiler.slo.simulated import SimulatedTrials, search_slos
from shared.protocol.profiling.slo_profile import Knob
from shared.scheduling.strategy import Strategy

DURATION_S = 20.0
SEED = 3
MACHINE = Machine(noise=0.02)


def make_plan(**options: object) -> ReplayPlan:
    rng = random.Random(1)
    times = sorted(rng.uniform(0, DURATION_S) for _ in range(40))
    requests = [TraceRequest(time_s, rng.randint(50, 900), rng.randint(5, 80)) for time_s in times]
    prompts = [OfflinePrompt(rng.randint(5, 60), num_prompt_tokens=rng.randint(100, 1500)) for _ in range(600)]
    return replace(ReplayPlan(requests, prompts, Scaling(duration_s=DURATION_S)), **options)  # type: ignore[arg-type]


def make_trials(preset: str) -> SimulatedTrials:
    strategy = Strategy.of(preset)
    setup = MACHINE.setup(strategy, SEED)
    return SimulatedTrials(SimulatedWorkload(make_plan(), setup), setup, DURATION_S, NoProgress())


def simulate(knob: Knob, value: float, expr: str) -> Report:
    """A run of its own, as the simulate command makes it."""
    budget = (
        Strategy.of("hygen", budget_ms=value)
        if knob is Knob.BUDGET_MS
        else Strategy.of("hygen-star", offline_qps=value)
    )
    plan = make_plan(slos=[parse_slo(expr)], baseline=True, offline_only_share=0.05)
    simulation = Simulation(plan, MACHINE.setup(budget, SEED), "sim://test", NoProgress())
    simulation.run()
    return simulation.report(partial=False)


@pytest.mark.parametrize(("preset", "expr"), [("hygen", "tbt_mean<=1.3x"), ("hygen-star", "tbt_mean<=1.3x")])
@pytest.mark.slow
def test_what_is_found_keeps_the_slo_and_more_does_not(preset: str, expr: str) -> None:
    trials = make_trials(preset)
    search = search_slos(trials, [parse_slo(expr)])
    assert search.value is not None
    found = simulate(trials.knob, search.value, expr)
    assert found.slo[0].met and found.offline is not None and found.offline.completed > 0
    trial = next(trial for trial in search.trials if trial.value == search.value)
    assert trial.verdicts[0].value_ms == found.slo[0].value
    assert trial.offline_tokens_per_s == found.offline.total_tokens_per_s
    assert not simulate(trials.knob, search.value * 1.3, expr).slo[0].met


def test_outcomes_do_not_depend_on_what_ran_before() -> None:
    values = [0.0, 40.0, 25.0]
    first, second = make_trials("hygen"), make_trials("hygen")
    forwards = {value: first.run(value) for value in values}
    assert second.span() == first.span()
    assert {value: second.run(value) for value in reversed(values)} == forwards


def test_the_span_ends_where_a_budget_changes_nothing() -> None:
    trials = make_trials("hygen")
    span = trials.span()
    assert trials.run(span.highest * 2) is trials.run(span.highest)
    simulated = simulate(Knob.BUDGET_MS, span.highest, "tbt_mean<=1ms")
    assert simulated.online == trials.run(span.highest).online
    assert simulated.offline == trials.run(span.highest).offline
    alone = trials.run(0.0)
    assert alone.offline is None
    below = simulate(Knob.BUDGET_MS, span.lowest * 0.99, "tbt_mean<=1ms")
    assert below.online is not None and below.online.tbt_ms is not None and alone.online.tbt_ms is not None
    assert below.online.tbt_ms.mean == pytest.approx(alone.online.tbt_ms.mean, rel=0.01), "none beside online requests"
    assert below.offline is not None and below.offline.completed > 0, "where none is there"


def test_the_span_of_a_rate_ends_where_requests_no_longer_wait() -> None:
    """From there on it is the run that holds nothing back, as where the executor has no rate."""
    trials = make_trials("hygen-star")
    span = trials.span()
    unlimited = simulate(Knob.OFFLINE_QPS, math.inf, "tbt_mean<=1ms")
    assert trials.run(span.highest).offline == trials.run(span.highest * 3).offline == unlimited.offline
    assert trials.run(span.highest).online == unlimited.online
    below = trials.run(span.highest * 0.9).offline
    assert below is not None and unlimited.offline is not None
    assert below.total_tokens_per_s == pytest.approx(unlimited.offline.total_tokens_per_s, rel=0.02)


def test_a_search_needs_both_kinds_of_work() -> None:
    strategy = Strategy()
    setup = MACHINE.setup(strategy, SEED)
    for missing in ("requests", "prompts"):
        workload = SimulatedWorkload(make_plan(**{missing: []}), setup)
        with pytest.raises(WorkloadError, match="give --online and --offline"):
            SimulatedTrials(workload, setup, DURATION_S, NoProgress())
