"""Each figure of HyGen's evaluation, on a workload of seconds."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.figures.kinds.over_time import Timeline
from benchmarks.figures.papers.hygen import HYGEN as PAPER
from benchmarks.figures.papers.hygen import LLAMA, QWEN
from benchmarks.figures.trace_lab import FITTED, MEAN_TBT, METRICS, P99_TTFT, Setting, TraceLab
from benchmarks.harness.origin import origin_now
from benchmarks.lab.lab import ONLINE_ONLY, STAR

LEFT = ["setting", "metric", "online only ms", "sarathi++"]
COLUMNS = {
    "fig3": [*LEFT, "SLO 1.10x", "SLO 1.50x"],
    "fig4": [*LEFT, "SLO 1.10x", "SLO 1.50x"],
    "fig6": ["prefix sharing", "budget ms", "order", "questions/s", "over fcfs", "cached"],
    "fig12": [*LEFT, "SLO 1.10x", "SLO 1.50x"],
}
ROWS = {"fig3": 2 * len(METRICS), "fig4": 2 * len(METRICS), "fig12": len(METRICS), "fig6": 32}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER.figures)
def test_a_figure_is_a_table_and_a_picture(name: str, lab: TraceLab, tmp_path: Path) -> None:
    result = PAPER.figures[name].make(lab)
    PAPER.page.write(tmp_path, name, result, origin_now())
    for table in result.tables:
        assert table.rows and all(list(row) == list(table.rows[0]) for row in table.rows)
        assert table.markdown() in (tmp_path / PAPER.page.file).read_text()
    headings = list(result.tables[0].rows[0])
    assert headings == COLUMNS.get(name, headings)
    assert len(result.tables[0].rows) == ROWS.get(name, len(result.tables[0].rows))
    picture = tmp_path / PAPER.page.images / f"{name}.png"
    with Image.open(picture) as image:
        assert image.width == 800
    assert picture.stat().st_size < 60_000


@pytest.mark.parametrize("setting", [LLAMA, QWEN], ids=lambda setting: setting.name)
def test_what_is_found_keeps_its_slo_and_a_looser_slo_gives_no_smaller_value(setting: Setting, lab: TraceLab) -> None:
    bench = lab.bench(setting)
    for metric in METRICS:
        strict, loose = (bench.largest(FITTED, [metric.slo(tolerance)]) for tolerance in (0.2, 0.5))
        assert strict.value is not None and loose.value is not None
        assert metric.ratio(bench, strict.measured) <= 1.2
        assert metric.ratio(bench, loose.measured) <= 1.5
        assert metric.ratio(bench, bench.largest(STAR, [metric.slo(0.1)]).measured) <= 1.1
        assert strict.value <= loose.value


def test_two_slos_are_bounded_by_the_tighter(lab: TraceLab) -> None:
    bench = lab.bench(LLAMA)
    slos = [MEAN_TBT.slo(0.5), P99_TTFT.slo(0.5)]
    both, loose, tight = (bench.largest(FITTED, each).value for each in (slos, slos[:1], slos[1:]))
    assert both is not None and loose is not None and tight is not None
    assert both <= tight < loose


def test_an_slo_that_nothing_keeps_lets_no_offline_work_in(lab: TraceLab) -> None:
    bench = lab.bench(LLAMA)
    found = bench.largest(STAR, ["tbt_mean<=0.001ms"])
    assert found.value is None and found.text == "0"
    assert found.measured.offline_tokens_per_s == 0


def test_runs_are_shared(lab: TraceLab) -> None:
    bench = lab.bench(LLAMA)
    first = bench.largest(FITTED, [MEAN_TBT.slo(0.2)])
    assert lab.bench(replace(LLAMA)) is bench
    assert bench.largest(FITTED, [MEAN_TBT.slo(0.2)]).measured.online is first.measured.online


def test_a_timeline_adds_up(lab: TraceLab) -> None:
    bench = lab.bench(LLAMA)
    timeline = Timeline(bench.load.duration_s)
    timeline.take_online(bench.watch(ONLINE_ONLY, None, timeline.on_step))
    assert sum(timeline.arrivals) == len(bench.load.requests)
    assert sum(timeline.online) > 0
    online_s = sum(timeline.online) / timeline.duration_s
    assert sum(timeline.offline) / timeline.duration_s == pytest.approx(0, abs=0.15 * online_s)
