"""BROS's figures over a few seconds, and the requests that they are made with."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.bros.__main__ import FIGURES, app
from benchmarks.bros.bench import SYSTEMS, Bench, Inputs
from benchmarks.bros.workload import LMSYS, SHAREGPT, Dataset, backlog
from benchmarks.harness.page import BROS_PAGE
from benchmarks.harness.progress import SilentFigures
from shared.scheduling.packing.packings import PACKINGS


@pytest.mark.parametrize("dataset", [SHAREGPT, LMSYS])
def test_lengths_and_arrivals_are_the_papers(dataset: Dataset) -> None:
    requests = dataset.arrivals(rate=20.0, duration_s=2000.0, seed=1)
    assert len(requests) == pytest.approx(40_000, rel=0.02)
    for lengths, drawn in (
        (dataset.prompt, [request.num_prompt_tokens for request in requests]),
        (dataset.output, [request.num_output_tokens for request in requests]),
    ):
        assert statistics.fmean(drawn) == pytest.approx(lengths.mean, rel=0.03)
        assert statistics.pstdev(drawn) == pytest.approx(lengths.deviation, rel=0.1)
    assert requests == dataset.arrivals(rate=20.0, duration_s=2000.0, seed=1)
    times = [request.arrival_s for request in requests]
    assert times == sorted(times) and times[0] > 0 and times[-1] < 2000.0


def test_the_backlog_has_the_papers_means() -> None:
    prompts = backlog(20_000, seed=1)
    assert statistics.fmean(prompt.num_prompt_tokens or 0 for prompt in prompts) == pytest.approx(768, rel=0.01)
    assert statistics.fmean(prompt.max_tokens for prompt in prompts) == pytest.approx(80, rel=0.01)


def test_every_system_serves_the_same_requests() -> None:
    bench = Bench(Inputs("llama2-7b", (3.0,), duration_s=8.0), SilentFigures())
    measured = {system: bench.run(system, SHAREGPT, 3.0) for system in SYSTEMS}
    assert len({each.online.requests for each in measured.values()}) == 1
    assert all(each.online.completed == each.online.requests for each in measured.values())
    assert measured["bros"].ttft_attainment == 1.0 > measured["fcfs"].ttft_attainment
    assert bench.run("bros", SHAREGPT, 3.0) is measured["bros"]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_and_printed(name: str, tmp_path: Path) -> None:
    before = dict(PACKINGS)
    arguments = [name, "--model", "llama2-7b", "--rate", "2", "--rate", "4", "--duration", "4", "--no-progress"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / BROS_PAGE.file).read_text()
    assert page.startswith("# BROS's figures") and result.stdout.strip() in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + {"rates": 16, "kv": 6, "overhead": 4}[name]
    with Image.open(tmp_path / BROS_PAGE.images / f"{name}.png") as picture:
        assert picture.width == 800
    assert before == PACKINGS


def test_an_unknown_model_is_refused() -> None:
    result = CliRunner().invoke(app, ["rates", "--model", "gpt"])
    assert result.exit_code == 2 and "opt-13b" in result.stderr
