"""Echo's figures over a few seconds, with systems of parts that each installation has, and the requests that they are
made with."""

import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.figures.__main__ import app
from benchmarks.figures.backlog_lab import CHOSEN_ON, SHOWN_ON, BacklogLab, BacklogOptions
from benchmarks.figures.kinds.load_forecast import Forecast, per_minute
from benchmarks.figures.papers import echo
from benchmarks.figures.papers.echo import ECHO, QA_SHORT, SLO
from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.origin import origin_now
from benchmarks.harness.page import FigureProgress
from benchmarks.lab.documents import Documents
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.few_shots import thought_prompts
from benchmarks.lab.lab import ONLINE_ONLY, SARATHI
from benchmarks.lab.recording import Moment
from loadgen.errors import TraceError, WorkloadError
from loadgen.workload.backlog import OfflinePrompt

ROWS = {
    "rates": 4,
    "fig6": 8,
    "fig7": 5,
    "fig8": 2,
    "fig9": 4,
    "fig10": 2,
    "fig11": 3,
    "parts": 2 * len(echo.PARTS),
    "texts": 8,
}


@pytest.fixture(scope="module")
def lab(options: TraceOptions, tmp_path_factory: pytest.TempPathFactory) -> BacklogLab:
    folder = tmp_path_factory.mktemp("echo")
    tasks, task_prompts, clients = folder / "tasks.jsonl", folder / "task_prompts.jsonl", folder / "clients.csv"
    tasks.write_text("".join(f'{{"task": "sorting", "input": "sort {number}"}}\n' for number in range(50)))
    task_prompts.write_text('{"task": "sorting", "prompt": "' + "Sort the words. " * 60 + '"}\n')
    rows = [
        "client,start_s,rate,cv,dist,arg1,arg2",
        *(f"1,{600 * row},0.2,1,Gamma,1,5" for row in range(8 * 144, 10 * 144)),
    ]
    clients.write_text("\n".join(rows) + "\n")
    made = BacklogOptions(
        online=options.online,
        clients=clients,
        shots=options.shots,
        questions=options.questions,
        tasks=tasks,
        task_prompts=task_prompts,
        duration=4.0,
        warm_up=0.0,
        rate=2.0,
    )
    return BacklogLab(made, FigureProgress())


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Answers of a second, and systems of parts that are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(echo, "BACKLOGS", (QA_SHORT, echo.CHATS))
        patch.setattr(echo, "RATES", (2.0, 4.0))
        for name in ("HOUR", "DAY"):
            patch.setattr(echo, name, replace(getattr(echo, name), output=Lognormal(8.0, 2.0)))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", ECHO.figures)
def test_a_figure_is_a_table_and_a_picture(name: str, lab: BacklogLab, tmp_path: Path) -> None:
    result = ECHO.figures[name].make(lab)
    ECHO.page.write(tmp_path, name, result, origin_now())
    (table,) = result.tables
    assert len(table.rows) == ROWS[name] and all(list(row) == list(table.rows[0]) for row in table.rows)
    assert table.markdown() in (tmp_path / ECHO.page.file).read_text()
    picture = tmp_path / ECHO.page.images / f"{name}.png"
    with Image.open(picture) as image:
        assert image.width == 800
    assert picture.stat().st_size < 60_000


def shared_tokens(prompts: Sequence[OfflinePrompt]) -> int:
    """What a cache without bounds would have had."""
    firsts = {prompt.block_ids: prompt.block_tokens for prompt in prompts if prompt.block_ids}
    return sum(prompt.block_tokens for prompt in prompts if prompt.block_ids) - sum(firsts.values())


@pytest.mark.parametrize(("mean", "shared"), [(23_474, 0.91), (1_835, 0.85), (308, 0.0)])
def test_documents_have_the_papers_means(mean: int, shared: float) -> None:
    documents = Documents("some", mean, shared, lambda rng: rng.randint(1, 9))
    prompts = documents.draw(20_000, seed=1)
    lengths = [prompt.num_prompt_tokens or 0 for prompt in prompts]
    assert len(prompts) == 20_000 and statistics.fmean(lengths) == pytest.approx(mean, rel=0.03)
    assert shared_tokens(prompts) / sum(lengths) == pytest.approx(shared, abs=0.01)
    assert all(prompt.block_tokens < length for prompt, length in zip(prompts, lengths, strict=True) if shared)
    assert prompts == documents.draw(20_000, seed=1) != documents.draw(20_000, seed=2)
    neighbours = sum(before.block_ids == after.block_ids != () for before, after in pairwise(prompts))
    assert neighbours < 0.01 * len(prompts), "shuffled"


def test_more_sharing_than_the_questions_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="5 questions a document share less than 80%"):
        Documents("some", 100, 0.8, lambda rng: 1, questions=5)


def test_thoughts_are_examples_and_a_question(lab: BacklogLab, tmp_path: Path) -> None:
    assert lab.options.task_prompts is not None and lab.options.tasks is not None
    prompts = thought_prompts(lab.options.task_prompts, lab.options.tasks, seed=1)
    texts = [prompt.text or "" for prompt in prompts]
    assert len(set(texts)) == 50 and all(text.startswith("Sort the words. ") for text in texts)
    assert all(text.endswith("\nA: Let's think step by step.") for text in texts)
    assert texts != sorted(texts), "shuffled"
    (tmp_path / "tasks.jsonl").write_text('{"task": "counting", "input": "1"}\n')
    with pytest.raises(TraceError, match=r"line 1: .*no examples of counting"):
        thought_prompts(lab.options.task_prompts, tmp_path / "tasks.jsonl", seed=1)


def test_what_is_shown_is_not_what_was_chosen_on(lab: BacklogLab) -> None:
    chosen, shown = (echo.HOUR.requests(lab.options, part, 2.0, 4.0) for part in (CHOSEN_ON, SHOWN_ON))
    assert chosen != shown and len(chosen) == len(shown) == 8
    assert echo.HOUR.requests(lab.options, SHOWN_ON, 2.0, 4.0) == shown
    with pytest.raises(WorkloadError, match="give a shorter --duration"):
        echo.HOUR.requests(lab.options, SHOWN_ON, 2.0, 50.0)


def test_a_recording_adds_up(lab: BacklogLab) -> None:
    bench = lab.bench(echo.HOUR, QA_SHORT)
    recording, run = bench.record(SARATHI), bench.run(SARATHI)
    assert bench.record(SARATHI) is recording
    last = recording.moments[-1]
    assert last.prompt_tokens <= run.totals.prompt_tokens and last.time_s <= bench.load.duration_s
    assert len({sum(astuple(moment.owners)) for moment in recording.moments}) == 1
    parts = recording.parts(2.0)
    assert sum(part.gained(computed) for part in parts) <= recording.gained(computed)
    assert recording.after(1.0).moments[0].time_s >= 1.0 > recording.moments[0].time_s
    assert len(recording.after(1.0).records) < len(recording.records) == len(bench.load.requests)
    with pytest.raises(WorkloadError, match="nothing is left"):
        recording.after(100.0)


def computed(moment: Moment) -> int:
    return moment.prompt_tokens


def test_attainment_asks_for_both_latencies(lab: BacklogLab) -> None:
    recording = lab.bench(echo.HOUR, None).record(ONLINE_ONLY)
    assert recording.attained(SLO) == 1.0
    assert recording.attained(type(SLO)(1000.0, 0.001)) < 1.0 > recording.attained(type(SLO)(0.001, 50.0))


def test_a_forecast_is_of_what_was_before() -> None:
    values = [random.Random(1).gauss(100, 10) for _ in range(3)] + [float(number % 7) for number in range(60)]
    forecast = Forecast(values, 10, 2.0)
    before = [values[end - 10 : end] for end in range(10, 63)]
    naive = [statistics.fmean(each) + 2 * statistics.pstdev(each) for each in before]
    assert forecast.foretold == pytest.approx(naive) and list(forecast.actual) == values[10:]
    assert forecast.covered == sum(ours <= theirs for ours, theirs in zip(values[10:], naive, strict=True)) / 53
    assert per_minute([0.0, 59.9, 60.0, 180.5], 180.0) == [2.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="foretells nothing"):
        Forecast([1.0], 1, 2.0)


def test_the_command_says_what_it_needs() -> None:
    result = CliRunner().invoke(app, ["echo", "fig8", "--no-progress"])
    assert result.exit_code == 2 and "--clients" in result.stderr
