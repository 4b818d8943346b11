"""OOCO's figures over a few seconds, and the lab that they are made in."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.figures.__main__ import app
from benchmarks.figures.papers import ooco
from benchmarks.figures.papers.ooco import ALONE, BASE, OFFLINE, OOCO, OURS, SMALL, SYSTEMS
from benchmarks.figures.pool_run import MOST_BROKEN, misses
from benchmarks.figures.pools_lab import Case, Dataset, PoolsLab, PoolsOptions
from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.origin import origin_now
from benchmarks.harness.page import FigureProgress
from benchmarks.lab.drawn import Lognormal
from loadgen.client.records import RequestRecord
from loadgen.errors import WorkloadError
from shared.scheduling.packing.deadlines.token_slo import TokenSlo

SHORT = Dataset("short", Lognormal(1500.0, 500.0), Lognormal(8.0, 4.0))
CASE, OTHER = Case(SMALL, SHORT), replace(SHORT, name="other")
ROWS = {"fig6-7b": len(SYSTEMS), "unseen": len(SYSTEMS) + 1, "tpot": 8, "interruption": 6}


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Short answers, and short steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ooco, "DATASETS", (SHORT, OTHER))
        patch.setattr(ooco, "AZURE_CONV", SHORT)
        patch.setattr(ooco, "OOC", SHORT)
        patch.setattr(ooco, "OFFLINE", replace(OFFLINE, output=Lognormal(8.0, 4.0)))
        patch.setattr(ooco, "CHUNKS", (512, 2048))
        patch.setattr(ooco, "TPOTS_MS", (15.0, 50.0))
        yield


@pytest.fixture(scope="module")
def lab(options: TraceOptions, small: None) -> PoolsLab:
    made = OOCO.open(PoolsOptions(options.online, dataset=["short"], duration=5.0, precision=0.5), FigureProgress())
    assert isinstance(made, PoolsLab)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_figure_is_a_table_and_a_picture(name: str, lab: PoolsLab, tmp_path: Path) -> None:
    result = OOCO.figures[name].make(lab)
    OOCO.page.write(tmp_path, name, result, origin_now())
    (table,) = result.tables
    assert len(table.rows) == ROWS[name] and all(list(row) == list(table.rows[0]) for row in table.rows)
    assert table.markdown() in (tmp_path / OOCO.page.file).read_text()
    with Image.open(tmp_path / OOCO.page.images / f"{name}.png") as image:
        assert image.width == 800


def test_online_load_is_what_is_just_served(lab: PoolsLab) -> None:
    rate = lab.rate(CASE)
    assert rate == lab.rate(CASE) > 1.0
    assert lab.run(CASE, ALONE, rate, 0.0).broken_at_worst <= MOST_BROKEN
    assert not lab.run(CASE, ALONE, 3.0 * rate, 0.0).keeps_at_worst


def test_the_most_keeps_the_slo(lab: PoolsLab) -> None:
    most = lab.most(CASE, SYSTEMS[BASE])
    assert most.run.keeps and 0 < most.rate <= lab.capacity(CASE, lab.rate(CASE))
    assert 0 < most.run.ended_per_s <= 1.5 * most.rate and most.run.offline_tokens_per_s > 0
    assert not lab.run(CASE, SYSTEMS[BASE], 3.0 * lab.rate(CASE), lab.capacity(CASE, 1.0)).is_whole, "it is given up"


def test_pools_move_requests_and_mixed_executors_do_not(lab: PoolsLab) -> None:
    ours, mixed = (lab.run(CASE, SYSTEMS[name], 4.0, 1.0) for name in (OURS, "mixed, hygen"))
    assert ours.handed_over >= 15 and mixed.handed_over == 0
    assert len(ours.busy_shares) == len(mixed.busy_shares) == 2


def test_without_a_trace_arrivals_rise_and_fall() -> None:
    lab = PoolsLab(PoolsOptions(duration=600.0), FigureProgress(), OFFLINE, ALONE)
    arrivals_s = [request.arrival_s for request in lab.requests(SHORT, 10.0)]
    assert arrivals_s == sorted(arrivals_s) and len(arrivals_s) == pytest.approx(6000, rel=0.05)
    in_middle = sum(200 <= each < 400 for each in arrivals_s)
    assert in_middle / len(arrivals_s) == pytest.approx(1 / 3 + 0.4 * 3**0.5 / (2 * 3.1416), abs=0.02)


def test_who_misses_the_slo() -> None:
    slo = TokenSlo(ttft_ms=1000.0, tpot_ms=50.0)

    def is_missed(*times_s: float, now_s: float = 20.0) -> bool:
        return misses(RequestRecord(10.0, token_times_s=list(times_s)), slo, now_s)

    assert is_missed() and not is_missed(now_s=10.9)
    assert is_missed(11.1) and not is_missed(10.9)
    assert is_missed(10.5, 10.6, 10.7) and not is_missed(10.5, 10.59, 10.6)


def test_what_is_not_there_is_said(lab: PoolsLab) -> None:
    cases = [CASE, Case(SMALL, OTHER)]
    unknown = PoolsLab(PoolsOptions(dataset=["long"]), FigureProgress(), OFFLINE, ALONE)
    with pytest.raises(WorkloadError, match="no dataset 'long'; known: short, other"):
        unknown.chosen(cases)
    assert lab.chosen(cases) == [CASE]


def test_the_command_draws_what_no_trace_gives(tmp_path: Path) -> None:
    small = ["--duration", "3", "--no-progress", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["ooco", "interruption", *small])
    assert result.exit_code == 0, result.output
    assert "drawn arrivals" in result.stdout and "interrupted steps" in result.stdout
