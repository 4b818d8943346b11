"""The plan of one device: its least resources are the least, and what is kept beside offline work is kept."""

from dataclasses import replace

import pytest

from loadgen.progress import NoProgress
from loadgen.report.slo import parse_slo
from services.profiler.capacity.device_job import DeviceJob
from services.profiler.capacity.record import DevicePlan, PeakTrial
from services.profiler.capacity.watched_run import verdicts_of
from services.profiler.simulation.setup import Machine
from shared.protocol.profiling.slo_profile import Knob, SloVerdict
from shared.scheduling.strategy import Strategy
from tests.services.profiler.capacity.planning import BURST_S, BURST_START_S, WINDOW_S, make_workload

SLOS = [parse_slo("ttft_p90<=600ms"), parse_slo("tpot_p90<=50ms")]
ONLINE_ONLY = Strategy.of("online-only")


def make_job(preset: str = "hygen", max_executors: int = 6, num_prompts: int = 40, **knobs: float) -> DeviceJob:
    machine = Machine("llama3.1-8b", "a100-40g", interrupts=True)
    strategy = Strategy.of(preset, **knobs)
    return DeviceJob(machine, strategy, make_workload(num_prompts), SLOS, [1, 2], max_executors, 1000, seed=0)


def verdicts_on(trial: PeakTrial, executors: int) -> list[SloVerdict]:
    """Of a run to the end on so many."""
    setup = Machine("llama3.1-8b", "a100-40g", trial.tensor_parallel, executors=executors).setup(ONLINE_ONLY, 0)
    phase = make_workload().online_at_peak(setup, executors).phase(setup, BURST_S, online=True, offline=False)
    phase.run()
    report = phase.outcome().online
    assert report is not None
    return verdicts_of(SLOS, report)


@pytest.fixture(scope="module")
def plan() -> DevicePlan:
    return make_job(budget_ms=25.0).run(NoProgress(), lambda so_far: None)


def test_the_burst_is_the_peak() -> None:
    workload = make_workload()
    assert abs(workload.peak_start_s - BURST_START_S) < 1.0
    assert len(workload.peak.requests) == sum(workload.is_of_peak(each.arrival_s) for each in workload.whole.requests)


def test_one_executor_fewer_breaks_an_slo(plan: DevicePlan) -> None:
    least = plan.least
    assert least is not None and least.executors > 1 and least.met
    assert all(verdict.met for verdict in verdicts_on(least, least.executors))
    assert not all(verdict.met for verdict in verdicts_on(least, least.executors - 1))


def test_everything_smaller_was_tried_and_lost_soon(plan: DevicePlan) -> None:
    assert plan.least is not None
    assert [trial.met for trial in plan.trials] == [False] * (len(plan.trials) - 1) + [True]
    assert [trial.gpus for trial in plan.trials] == sorted(trial.gpus for trial in plan.trials)
    first = plan.trials[0]
    assert (first.gpus, first.lost) == (1, "ttft_p90<=600ms")
    assert first.lost_after_s is not None and first.lost_after_s < BURST_S  # before all requests had come


def test_beside_offline_work_the_slos_are_kept_over_the_window_and_its_peak(plan: DevicePlan) -> None:
    beside = plan.beside
    assert beside is not None and beside.knob is None
    assert all(verdict.met for verdict in [*beside.window, *beside.busiest])
    assert beside.offline_tokens_per_s > 0
    done = sum(part.offline_tokens_per_s * part.duration_s for part in beside.intervals)
    assert done == pytest.approx(beside.offline_tokens_per_s * WINDOW_S, rel=1e-6)


def test_the_backlog_s_time_is_that_of_the_rates(plan: DevicePlan) -> None:
    assert plan.beside is not None and plan.backlog is not None and plan.least is not None
    backlog = plan.backlog
    assert backlog.beside_h == pytest.approx(1000 / plan.beside.offline_requests_per_s / 3600)
    alone_h = 1000 / backlog.alone_requests_per_s / 3600
    assert backlog.alone_gpu_hours == pytest.approx(alone_h * plan.least.tensor_parallel)
    assert backlog.gpus_spared == pytest.approx(plan.beside.offline_requests_per_s / backlog.alone_requests_per_s)


def test_the_gpus_of_each_stage_are_counted() -> None:
    job = make_job(budget_ms=25.0)
    plan = replace(job, machine=replace(job.machine, pipeline_depth=2)).run(NoProgress(), lambda so_far: None)
    assert all(trial.gpus == 2 * trial.executors * trial.tensor_parallel for trial in plan.trials)
    assert plan.least is not None and plan.backlog is not None
    alone_h = 1000 / plan.backlog.alone_requests_per_s / 3600
    assert plan.backlog.alone_gpu_hours == pytest.approx(alone_h * 2 * plan.least.tensor_parallel)


def test_a_budget_that_nobody_set_is_searched_for() -> None:
    heard: list[DevicePlan] = []
    plan = make_job().run(NoProgress(), heard.append)
    assert [each.least for each in heard] == [plan.least] and heard[0].beside is None
    assert plan.beside is not None and plan.beside.knob is Knob.BUDGET_MS and plan.beside.value
    assert all(verdict.met for verdict in [*plan.beside.window, *plan.beside.busiest])


def test_without_offline_work_there_is_the_first_step_only() -> None:
    plan = make_job(num_prompts=0).run(NoProgress(), lambda so_far: None)
    assert plan.least is not None and plan.beside is None and plan.backlog is None and not plan.problem


def test_too_few_executors_are_a_problem_with_its_reason() -> None:
    plan = make_job(max_executors=1).run(NoProgress(), lambda so_far: None)
    assert plan.least is None
    assert "no more than 1 executors keep the SLOs" in plan.problem and "ttft_p90<=600ms" in plan.problem
