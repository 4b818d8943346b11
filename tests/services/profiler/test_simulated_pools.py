"""``slackwater simulate`` with strict executors, and offline requests that come at a rate."""

from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.replay import ReplayPlan
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.scaling import Scaling
from services.local.cli import app
from services.profiler.simulation.setup import Machine
from services.profiler.simulation.virtual_phase import VirtualPhase
from services.profiler.simulation.workload import SimulatedWorkload
from shared.scheduling.placement.role import Role
from shared.scheduling.strategy import Strategy
from tests.services.profiler.test_simulation import DURATION_S, make_plan, make_prompts, make_requests, trace_file

__all__ = ["trace_file"]  # a fixture

MACHINE = Machine("llama3.1-8b", "a100-40g", executors=3, strict=1)


def phase_of(plan: ReplayPlan, preset: str, offline_per_s: float | None = None) -> VirtualPhase:
    setup = MACHINE.setup(Strategy.of(preset), 0)
    workload = SimulatedWorkload(plan, setup, num_executors=MACHINE.executors, num_strict=MACHINE.strict)
    phase = workload.phase(setup, DURATION_S, bool(plan.requests), True, offline_per_s=offline_per_s)
    phase.run(drain=plan.drain)
    return phase


@pytest.mark.parametrize("preset", ["ooco", "fcfs"])
def test_every_request_ends_once_and_tokens_add_up(preset: str) -> None:
    requests, prompts = make_requests(1), make_prompts(1)
    phase = phase_of(make_plan(requests, prompts, drain=True), preset)
    totals = [each.replica.totals for each in phase.system.executors.values()]
    assert sum(each.finished_online for each in totals) == len(requests)
    assert sum(each.finished_offline for each in totals) == len(prompts)
    assert sum(each.online_tokens for each in totals) == sum(request.num_output_tokens for request in requests)
    assert sum(each.offline_tokens for each in totals) == sum(prompt.max_tokens for prompt in prompts)
    assert [len(record.token_times_s) for record in phase.records] == [r.num_output_tokens for r in requests]
    assert [each.role for each in phase.system.executors.values()] == [Role.STRICT, Role.RELAXED, Role.RELAXED]
    assert totals[0].taken_over == sum(each.handed_over for each in totals) > 40


def test_offline_requests_come_at_their_rate() -> None:
    """As many as there is time for, whatever the backlog has, and each at its time."""
    plan = ReplayPlan([], [OfflinePrompt(3, num_prompt_tokens=40)] * 7, Scaling(duration_s=DURATION_S))
    phase = phase_of(plan, "fcfs", offline_per_s=2.0)
    assert phase.backlog_size == pytest.approx(2 * DURATION_S, abs=1)
    assert phase.backlog_size - 2 <= phase.num_offline_finished <= phase.backlog_size


def test_a_report_says_what_was_simulated() -> None:
    url = partial(Machine.url, strategy=Strategy.of("ooco"))
    assert "executors=3&strict=1" in url(MACHINE) and "strict" not in url(Machine())


def test_executors_that_cannot_be_strict_are_said(trace_file: Path) -> None:
    arguments = ["--online", str(trace_file), "--executors", "2", "--strict", "2", "--duration", "5"]
    result = CliRunner().invoke(app, ["simulate", *arguments])
    assert result.exit_code == 2 and "at least one must be relaxed" in result.stderr
