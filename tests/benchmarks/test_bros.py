"""BROS's figures over a few seconds, and the requests that they are made with."""

import random
import statistics
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.figures.__main__ import app
from benchmarks.figures.papers.bros import BROS, LMSYS, ONE, SHAREGPT
from benchmarks.figures.rate_lab import OFFLINE_OUTPUT, OFFLINE_PROMPT, Dataset, RateLab, RateOptions
from benchmarks.harness.page import FigureProgress
from benchmarks.lab.drawn import uniform_backlog
from benchmarks.lab.lab import System
from shared.scheduling.packing.packings import PACKINGS

NUM_ROWS = {  # of a figure of each kind
    "rates": 8,
    "online": 2,
    "preemption": 2,
    "groups": 3,
    "planners": 3,
    "kv": 3,
    "room": 7,
    "overhead": 2,
    "pressure": 6,
}


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
    prompts = uniform_backlog(20_000, random.Random(1), OFFLINE_PROMPT, OFFLINE_OUTPUT)
    assert statistics.fmean(prompt.num_prompt_tokens or 0 for prompt in prompts) == pytest.approx(768, rel=0.01)
    assert statistics.fmean(prompt.max_tokens for prompt in prompts) == pytest.approx(80, rel=0.01)


def test_every_system_serves_the_same_requests() -> None:
    bench = RateLab(RateOptions("llama2-7b", duration=8.0), FigureProgress()).bench(ONE, SHAREGPT, 3.0)
    systems = [System.of(name) for name in ("bros", "hygen", "round-robin", "fcfs")]
    measured = {system.preset: bench.run(system, system.budget(50.0)) for system in systems}
    assert len({each.online.requests for each in measured.values()}) == 1
    assert all(each.online.completed == each.online.requests for each in measured.values())
    assert measured["bros"].attained["ttft"] == 1.0 > measured["fcfs"].attained["ttft"]
    assert bench.run(System.of("bros")) is measured["bros"]


@pytest.mark.parametrize(("name", "num_rows"), NUM_ROWS.items())
def test_a_figure_is_written_and_printed(name: str, num_rows: int, tmp_path: Path) -> None:
    before = dict(PACKINGS)
    arguments = ["bros", name, "--model", "llama2-7b", "--rate", "3", "--duration", "1", "--no-progress"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / BROS.page.file).read_text()
    assert page.startswith("# BROS's figures") and result.stdout.strip() in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + num_rows
    with Image.open(tmp_path / BROS.page.images / f"{name}.png") as picture:
        assert picture.width == 800
    assert before == PACKINGS


def test_an_unknown_model_is_refused() -> None:
    result = CliRunner().invoke(app, ["bros", "rates", "--model", "gpt"])
    assert result.exit_code == 2 and "opt-13b" in result.stderr
