"""What a terminal shows of a report."""

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from loadgen.report.metrics import interference, online_report
from loadgen.report.report import Baseline, Report, SloReport
from loadgen.report.table import latency_table, print_report, throughput_table
from tests.loadgen.report.reports import facts, offline, record

ONLINE = online_report([record(0.0, 0.25, 0.75, prompt_tokens=100, output_tokens=5)], 0.0, 10.0)
ALONE = online_report([record(0.0, 0.125, 0.125, prompt_tokens=100, output_tokens=5)], 0.0, 10.0)
BESIDE = offline(10_000, 2_000)
SLOS = [SloReport("ttft_p99<=1s", 1000.0, 250.0, True, 1.0), SloReport("tbt_p99<=2x", None, None, False, None)]


def shown(report: Report) -> list[str]:
    console = Console(file=io.StringIO(), record=True, width=120)
    print_report(console, report)
    return [line.rstrip() for line in console.export_text().splitlines() if line.strip(" ─")]


def made(**changes: Any) -> Report:
    return replace(Report(facts(), None, None, None, None, None, [], False, []), **changes)


def rows(table: Table) -> dict[str, list[str]]:
    head, *columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return dict(zip(head, map(list, zip(*columns, strict=True)), strict=True))


def test_a_whole_report() -> None:
    baseline = Baseline(ALONE, offline(None, 4_000), 0.5)
    report = made(
        online=ONLINE,
        offline=BESIDE,
        baseline=baseline,
        interference=interference(ONLINE, ALONE),
        harvest=0.987,
        slo=SLOS,
        notes=["late"],
    )
    assert shown(report) == [
        "tiny at http://server/v1, 2026-11-28T12:00:00Z",
        "online: week.csv; offline: prompts.jsonl; 600 s from 60 s, seed 7, prompts as token ids",
        " online latency           mean     p50     p90     p99",
        " TTFT ms                   250     250     250     250",
        "   online only             125     125     125     125",
        "   ratio                 2.00x   2.00x   2.00x   2.00x",
        " TBT ms                    500     500     500     500",
        "   online only            0.00    0.00    0.00    0.00",
        "   ratio                     -       -       -       -",
        " TPOT ms                   125     125     125     125",
        "   online only            0.00    0.00    0.00    0.00",
        "   ratio                     -       -       -       -",
        " normalized latency ms     150     150     150     150",
        "   online only            25.0    25.0    25.0    25.0",
        "   ratio                 6.00x   6.00x   6.00x   6.00x",
        " throughput                together   alone",
        " online requests                  1       1",
        " online errors                    0       0",
        " online output tokens/s        0.50    0.50",
        " offline completed               40      40",
        " offline errors                   1       1",
        " offline requests/s            4.00    4.00",
        " offline output tokens/s        200     400",
        " offline total tokens/s        1200       -",
        " idle share online only                0.50",
        " harvest                       0.99",
        " SLO            bound ms   measured ms   within   met",
        " ttft_p99<=1s       1000           250   100.0%   yes",
        " tbt_p99<=2x           -             -        -    NO",
        "note: late",
    ]


def test_what_was_not_measured_has_no_table() -> None:
    assert [line[:14] for line in shown(made(partial=True))] == ["tiny at http:/", "online: week.c"]
    assert shown(made(partial=True))[0].endswith("Z (partial)")
    assert list(rows(throughput_table(made(online=ONLINE)))) == [
        "online requests",
        "online errors",
        "online output tokens/s",
    ]
    assert any(line.startswith(" online latency") for line in shown(made(online=ONLINE)))
    offline_only = shown(made(offline=BESIDE))
    assert not any("latency" in line for line in offline_only) and any(
        "offline requests/s" in line for line in offline_only
    )


def test_a_baseline_whose_replay_did_not_run() -> None:
    """Its figures are there; those of the replay are not."""
    report = made(baseline=Baseline(ALONE, None, 0.25))
    assert any(line.startswith(" online latency") for line in shown(report))
    latencies = rows(latency_table(report))
    assert latencies["TTFT ms"] == ["-"] * 4 and latencies["  online only"] == ["25.0"] * 4
    assert rows(throughput_table(report))["online requests"] == ["-", "1"]
    nothing = made(baseline=Baseline(None, BESIDE, None))
    assert not any(line.startswith(" online latency") for line in shown(nothing))
    assert rows(throughput_table(nothing))["idle share online only"] == ["", "-"]


def test_figures_of_the_baseline_are_dimmer() -> None:
    report = made(online=ONLINE, baseline=Baseline(ALONE, None, None), interference=interference(ONLINE, ALONE))
    assert [row.style for row in latency_table(report).rows] == [None, "dim", "dim"] * 4


@pytest.mark.parametrize(
    ("harvest", "text"),
    [
        (0.0, "0.00"),
        (9.994, "9.99"),
        (10.0, "10.0"),
        (99.94, "99.9"),
        (100.0, "100"),
        (1234.5, "1234"),
        (-55.55, "-55.5"),
    ],
)
def test_digits_that_matter(harvest: float, text: str) -> None:
    report = made(harvest=harvest, baseline=Baseline(None, None, None))
    assert rows(throughput_table(report))["harvest"] == [text, ""]
