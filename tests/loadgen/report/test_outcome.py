"""Reports of phases that ran, were not wanted, or did not come to an end."""

import re
from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from loadgen.client.counters import BUSY_METRIC
from loadgen.report.metrics import harvest, interference, online_report
from loadgen.report.outcome import OFFLINE_ONLY, ONLINE_ONLY, TOGETHER, PhaseOutcome, compose
from loadgen.report.report import Baseline, OfflineReport, OnlineReport, Report, RunFacts
from loadgen.report.slo import Slo, parse_slos
from tests.loadgen.report.reports import facts, offline, record

FAST = [record(0.0, 0.1, 0.2), record(1.0, 1.2, 1.3)]
SLOW = [record(0.0, 0.2, 0.5), record(1.0, 1.4, 1.5)]
ONLINE, ALONE = online_report(SLOW, 0.0, 10.0), online_report(FAST, 0.0, 10.0)
BESIDE, OFFLINE = offline(1000, 500), offline(4000, 2000)
PHASES = {
    ONLINE_ONLY: PhaseOutcome(ALONE, records=FAST, idle_share=0.5),
    OFFLINE_ONLY: PhaseOutcome(offline=OFFLINE),
    TOGETHER: PhaseOutcome(ONLINE, BESIDE, SLOW, idle_share=0.1),
}


def composed(
    phases: Mapping[str, PhaseOutcome],
    slos: Sequence[Slo] = (),
    baseline: bool = True,
    run: RunFacts | None = None,
    notes: Sequence[str] = (),
) -> Report:
    return compose(run or facts(), phases, slos, baseline, partial=False, notes=notes)


def without(*names: str) -> dict[str, PhaseOutcome]:
    return {name: outcome for name, outcome in PHASES.items() if name not in names}


def together(online: OnlineReport | None = None, beside: OfflineReport | None = None) -> dict[str, PhaseOutcome]:
    return {TOGETHER: PhaseOutcome(online, beside)}


def test_a_run_with_its_baseline() -> None:
    report = composed(PHASES, parse_slos("ttft_p99<=3x, ttft_p50<=1.5x"))
    assert (report.online, report.offline) == (ONLINE, BESIDE)
    assert report.baseline == Baseline(ALONE, OFFLINE, 0.5)
    assert report.interference == interference(ONLINE, ALONE)
    assert report.harvest == harvest(BESIDE, OFFLINE, 0.5) == 0.5
    assert [(slo.met, slo.attainment) for slo in report.slo] == [(True, 1.0), (False, 0.5)]
    assert report.notes == [] and not report.partial


def test_a_run_without_a_baseline_compares_with_nothing() -> None:
    report = composed(PHASES, parse_slos("ttft_p99<=3x, ttft_p99<=1s"), baseline=False)
    assert (report.baseline, report.interference, report.harvest) == (None, None, None)
    assert [slo.met for slo in report.slo] == [False, True]
    assert report.notes == []


def test_a_run_that_was_stopped_before_anything_was_measured() -> None:
    for baseline, alone in ((False, None), (True, Baseline(None, None, None))):
        report = compose(facts(), {}, parse_slos("ttft_p99<=1s"), baseline, partial=True, notes=["stopped"])
        assert report == Report(facts(), None, None, alone, None, None, [], True, ["stopped"])


@pytest.mark.parametrize("lacking", PHASES)
def test_what_needs_a_phase_that_did_not_run_is_missing(lacking: str) -> None:
    report = composed(without(lacking), parse_slos("ttft_p99<=3x"))
    assert (report.interference is None) == (lacking in {ONLINE_ONLY, TOGETHER})
    assert report.harvest is None
    assert [slo.met for slo in report.slo] == {TOGETHER: [], ONLINE_ONLY: [False], OFFLINE_ONLY: [True]}[lacking]


@pytest.mark.parametrize(
    ("phases", "why"),
    [
        (without(OFFLINE_ONLY), "the offline-only run is missing"),
        (PHASES | {ONLINE_ONLY: PhaseOutcome(ALONE)}, f"the server's /metrics has no steady {BUSY_METRIC}"),
        (PHASES | {ONLINE_ONLY: PhaseOutcome(ALONE, idle_share=0.0)}, "the online-only run left no idle time"),
        (PHASES | {OFFLINE_ONLY: PhaseOutcome(offline=offline(0, 0))}, "no offline request ended within the offline"),
        (PHASES | {OFFLINE_ONLY: PhaseOutcome(offline=offline(None, None))}, "token counts are missing"),
    ],
)
def test_why_there_is_no_harvest(phases: dict[str, PhaseOutcome], why: str) -> None:
    (note,) = composed(phases).notes
    assert note.startswith(f"no harvest: {why}")
    assert composed(phases, baseline=False).notes == [], "none was to be had"
    assert composed(phases | {TOGETHER: PhaseOutcome(ONLINE, records=SLOW)}).notes == [], "nor without offline work"


def test_failed_requests_are_told_where_they_decide_about_slos() -> None:
    failed = [*SLOW, record(2.0, error="500: broken")]
    phases = {TOGETHER: PhaseOutcome(online_report(failed, 0.0, 10.0), records=failed)}
    (note,) = composed(phases, parse_slos("ttft_p99<=3s"), baseline=False, notes=[]).notes
    assert note.startswith("1 of 3 online requests failed")
    assert composed(phases, baseline=False).notes == []
    assert composed(PHASES, parse_slos("ttft_p99<=3s"), baseline=False).notes == []


def test_a_load_generator_that_was_late_is_told() -> None:
    for lag_s, is_told in ((0.3, True), (0.02, False), (0.001, False)):
        late = [record(0.0, 1.0, sent_s=lag_s)] * 4
        notes = composed(together(online_report(late, 0.0, 10.0)), baseline=False).notes
        assert [note.startswith("the load generator was late") for note in notes] == [True] * is_told
    late_alone = PhaseOutcome(online_report([record(0.0, 1.0, sent_s=0.3)] * 4, 0.0, 10.0), idle_share=0.5)
    (note,) = composed(PHASES | {ONLINE_ONLY: late_alone}).notes
    assert note.startswith("online only: the load generator was late: 1% of the requests left over 300 ms after")
    nothing_sent = online_report([record(0.0, sent_s=None, finished_s=None)], 0.0, 10.0)
    assert composed(together(nothing_sent), baseline=False).notes == []


def test_a_backlog_that_ran_out_is_told_of_each_run() -> None:
    short, whole = offline(10, 5, elapsed_s=1.5, exhausted=True), offline(10, 5)
    told = "the backlog ran out after 1.5 s, which its rates are over"
    assert composed(together(beside=short), baseline=False).notes == [f"replay: {told}"]
    assert composed(together(beside=whole), baseline=False).notes == []
    notes = composed(PHASES | {OFFLINE_ONLY: PhaseOutcome(offline=short)}).notes
    assert notes == [f"offline only: {told}"]


@pytest.mark.parametrize(("option", "sent"), [("qps", 10.0), ("rate_scale", 10.0), ("rate_scale", None)])
@pytest.mark.parametrize("excess", [1.25, 3.6])
def test_what_to_send_to_a_server_that_is_overloaded(option: str, sent: float | None, excess: float) -> None:
    """A little less than what it can do."""
    phases = together(replace(ONLINE, overload=excess))
    (note,) = composed(phases, baseline=False, run=replace(facts(), **{option: sent}), notes=[]).notes
    assert f"brings {excess:.2g} times what this server can do" in note and "mean TTFT 0.3 s" in note
    (advice,) = re.findall(rf"--{option.replace('_', '-')} ([\d.]+)", note)
    assert 0.85 < float(advice) * excess / (sent or 1.0) < 0.95


def test_whose_overload_it_is() -> None:
    overloaded = replace(ALONE, overload=2.0)
    (note,) = composed(PHASES | {ONLINE_ONLY: PhaseOutcome(overloaded, idle_share=0.5)}).notes
    assert note.startswith("online only: overloaded: mean TTFT 0.15 s")
    (note,) = composed(together(overloaded), baseline=False, run=replace(facts(), url="sim:device")).notes
    assert note.startswith("overloaded:") and "times what this device can do" in note
    assert composed(together(replace(overloaded, ttft_ms=None)), baseline=False).notes == [], "without any answer"
