"""Each figure of HyGen's evaluation, on a workload of seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.harness.page import HYGEN_PAGE
from benchmarks.hygen.bench import HYGEN, ONLINE_ONLY, STAR
from benchmarks.hygen.catalogue import FIGURES
from benchmarks.hygen.fig8 import Timeline
from benchmarks.hygen.lab import Lab
from benchmarks.hygen.settings import LLAMA, MEAN_TBT, METRICS, P99_TTFT, QWEN, Setting
from benchmarks.hygen.sweep import sweep

COLUMNS = {
    "fig3": ["setting", "metric", "online only ms", "sarathi++", "SLO 1.10x", "SLO 1.50x"],
    "fig4": ["setting", "metric", "SLO 1.10x", "SLO 1.50x"],
    "fig6": ["prefix sharing", "budget ms", "fcfs: questions/s", "psm", "psm-fair"],
    "fig12": ["metric", "SLO 1.10x", "SLO 1.50x"],
}
ROWS = {"fig3": 2 * len(METRICS), "fig4": 2 * len(METRICS), "fig12": len(METRICS)}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_a_table_and_a_picture(name: str, lab: Lab, tmp_path: Path) -> None:
    result = FIGURES[name].make(lab)
    HYGEN_PAGE.write(tmp_path, result)
    for table in result.tables:
        assert table.rows and all(len(row) == len(table.header) for row in table.rows)
        assert table.markdown() in (tmp_path / HYGEN_PAGE.file).read_text()
    assert list(result.tables[0].header) == COLUMNS.get(name, list(result.tables[0].header))
    assert len(result.tables[0].rows) == ROWS.get(name, len(result.tables[0].rows))
    picture = tmp_path / HYGEN_PAGE.images / f"{name}.png"
    with Image.open(picture) as image:
        assert image.width == 800
    assert picture.stat().st_size < 60_000


@pytest.mark.parametrize("setting", [LLAMA, QWEN], ids=lambda setting: setting.name)
def test_what_is_found_keeps_its_slo_and_a_looser_slo_gives_no_smaller_value(setting: Setting, lab: Lab) -> None:
    bench = lab.bench(setting)
    points = sweep(bench, (0.1, 0.5))
    for point in points:
        bound_ms = (1 + point.tolerance) * bench.online_only.latency_ms(point.metric)
        assert point.hygen.measured.latency_ms(point.metric) <= bound_ms
        assert point.star.measured.latency_ms(point.metric) <= bound_ms
    for strict, loose in zip(points[::2], points[1::2], strict=True):
        assert (strict.hygen.value or 0) <= (loose.hygen.value or 0)


def test_two_slos_are_bounded_by_the_tighter(lab: Lab) -> None:
    bench = lab.bench(LLAMA)
    both = bench.largest(HYGEN, [MEAN_TBT.slo(0.5), P99_TTFT.slo(0.02)])
    assert (both.value or 0) <= min(
        bench.largest(HYGEN, [slo]).value or 0 for slo in (MEAN_TBT.slo(0.5), P99_TTFT.slo(0.02))
    )


def test_an_slo_that_nothing_keeps_lets_no_offline_work_in(lab: Lab) -> None:
    bench = lab.bench(LLAMA)
    found = bench.largest(STAR, ["tbt_mean<=0.001ms"])
    assert found.value is None and found.text == "0"
    assert found.measured.offline_tokens_per_s == 0


def test_runs_are_shared(lab: Lab) -> None:
    bench = lab.bench(LLAMA)
    first = bench.largest(HYGEN, [MEAN_TBT.slo(0.2)])
    assert lab.bench(replace(LLAMA)) is bench
    assert bench.largest(HYGEN, [MEAN_TBT.slo(0.2)]).measured.outcome is first.measured.outcome


def test_a_timeline_adds_up(lab: Lab) -> None:
    bench = lab.bench(LLAMA)
    timeline = Timeline(bench.load.duration_s)
    phase = bench.phase(ONLINE_ONLY, None, timeline.on_change)
    phase.run()
    timeline.take_online(phase.records)
    assert sum(timeline.arrivals) == len(bench.load.requests)
    assert sum(timeline.online) > 0
    online_s = sum(timeline.online) / timeline.duration_s
    assert sum(timeline.offline) / timeline.duration_s == pytest.approx(0, abs=0.15 * online_s)
