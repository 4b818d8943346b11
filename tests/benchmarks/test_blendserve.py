"""BlendServe's figures of a hundred requests, and the workloads that they are made with."""

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from benchmarks.figures.__main__ import app
from benchmarks.figures.blend_lab import ADDS, DEVICES, OVERLAPS, BlendLab, BlendOptions, Ordering, Work
from benchmarks.figures.papers import blendserve
from benchmarks.figures.papers.blendserve import BLEND, BLENDSERVE, BURSTGPT, DFS, EXECUTORS, ORDERINGS, SAMPLES, TWO
from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.origin import origin_now
from benchmarks.harness.page import FigureProgress
from benchmarks.lab import request_sets
from benchmarks.lab.drawn import Lognormal
from benchmarks.lab.mixture import Demanded, Recipe, demanded
from benchmarks.lab.request_sets import (
    BLOCK_TOKENS,
    SYSTEM_TOKENS,
    DrawnSet,
    QuestionSet,
    RequestSet,
    apart,
    of_quantiles,
    of_summaries,
    of_trace,
    videos,
    with_known_lengths,
)
from loadgen.errors import TraceError, WorkloadError
from loadgen.workload.backlog import OfflinePrompt
from loadgen.workload.prompts import token_id_prompts
from services.profiler.simulation.encoding import PromptEncoder
from services.profiler.simulation.requests import PreparedBacklog
from shared.latency.architectures import architecture_named
from shared.latency.demand import DemandModel
from shared.latency.devices import device_named

MODEL = DemandModel.of(architecture_named("llama3.1-8b"), device_named("a100-80g"))
CHATS = DrawnSet("chats", 0, BURSTGPT.drawn)
RECIPE = Recipe(4.0, 0.2)
WORK = Work(BURSTGPT, RECIPE, 100)
ROWS = {
    "fig6": [2 * len(ORDERINGS)] * 2,
    "fig7": [2 * len(ORDERINGS)],
    "fig8": [2],
    "fig9": [1, 1],
    "lengths": [len(SAMPLES)],
    "interference": [3 * len(TWO)],
    "sizes": [2 * len(TWO)],
    "executors": [len(EXECUTORS) * len(TWO)],
    "online": [len(DEVICES) * len(ORDERINGS)],
}


@pytest.fixture(scope="module")
def lab() -> BlendLab:
    options = BlendOptions(
        size=100, grid_size=100, video_tokens=500.0, density=[4.0], sharing=[0.2, 0.9], kv_blocks=1_000, chunk=512
    )
    return BlendLab(options, FigureProgress())


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Short videos, and two subjects, of which a few dozen questions share something."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blendserve, "RECIPES", (Recipe(5.0, 0.2), RECIPE))
        patch.setattr(blendserve, "SHARES", (1.0, 2.0))
        patch.setattr(request_sets, "SUBJECTS", 2)
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_a_figure_is_tables_and_a_picture(name: str, lab: BlendLab, tmp_path: Path) -> None:
    result = BLENDSERVE.figures[name].make(lab)
    BLENDSERVE.page.write(tmp_path, name, result, origin_now())
    assert [len(table.rows) for table in result.tables] == ROWS[name]
    page = (tmp_path / BLENDSERVE.page.file).read_text()
    for table in result.tables:
        assert all(list(row) == list(table.rows[0]) for row in table.rows) and table.markdown() in page
    assert "none of our engines" in page, "whose device it is"
    with Image.open(tmp_path / BLENDSERVE.page.images / f"{name}.png") as image:
        assert image.width == 800


def test_the_grids_differ_by_their_chats() -> None:
    assert set(BLENDSERVE.figures) - set(ROWS) == {"fig10", "fig11", "fig12"}
    made = [BLENDSERVE.figures[name].about for name in ("fig9", "fig10", "fig11", "fig12")]
    assert [about.rpartition(" ")[2] for about in made] == ["BurstGPT.", "Azure-Trace.", "ShareGPT.", "WildChat."]


def test_a_cell_of_the_grid_that_cannot_be_mixed_is_empty(lab: BlendLab) -> None:
    overlapping, adding = BLENDSERVE.figures["fig9"].make(lab).tables
    for table in (overlapping, adding):
        assert table.rows and all(row["90% shared"] == "" and row["20% shared"].endswith("x") for row in table.rows)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_ends_all_and_no_order_beats_the_optimum(lab: BlendLab, device: str) -> None:
    for ordering in ORDERINGS.values():
        run = lab.run(WORK, ordering, device)
        assert run.num_tokens == lab.mixture(WORK).demanded.num_tokens
        assert run.seconds > lab.optimum_s(WORK, device) and run is lab.run(WORK, ordering, device)
        assert run.cached_share <= lab.mixture(WORK).demanded.shared_prompts + 1e-9
        assert sum(shape.decode_requests for shape in run.shapes) > 0


def test_devices_differ_by_what_overlaps(lab: BlendLab) -> None:
    ordering = ORDERINGS[DFS]
    overlapped, added = (lab.run(WORK, ordering, device) for device in (OVERLAPS, ADDS))
    assert added.seconds / 1.2 < overlapped.seconds < added.seconds
    assert "none of our engines" in lab.where(OVERLAPS, WORK) and "as our engines do" in lab.where(ADDS, WORK)


def test_each_of_several_executors_does_a_part(lab: BlendLab) -> None:
    one, two = (lab.run(WORK, ORDERINGS[BLEND], OVERLAPS, count) for count in (1, 2))
    assert two.num_tokens == one.num_tokens and two.seconds < one.seconds


def test_a_batch_longer_than_the_online_trace_is_refused(lab: BlendLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.figures.blend_lab.ONLINE_S", 1.0)
    with pytest.raises(WorkloadError, match="give fewer --size"):
        lab.beside(WORK, Ordering("fcfs"), ADDS)


@pytest.mark.parametrize(("density", "sharing"), [(1.4, 0.35), (0.9, 0.35), (1.4, 0.05), (0.9, 0.05)])
def test_a_mixture_has_the_density_and_the_sharing(density: float, sharing: float) -> None:
    sets: list[RequestSet] = [CHATS, QuestionSet(1), videos(2, 4000.0)]
    mixture = Recipe(density, sharing).mix("some", sets, 4_000, MODEL, seed=1)
    assert len(mixture.prompts) == pytest.approx(4_000, abs=3)
    assert mixture.demanded.density == pytest.approx(density, rel=0.03)
    assert mixture.demanded.sharing == pytest.approx(sharing, abs=0.01)
    assert mixture.prompts == Recipe(density, sharing).mix("some", sets, 4_000, MODEL, seed=1).prompts


@pytest.mark.parametrize("recipe", [Recipe(500.0, 0.1), Recipe(0.05, 0.1), Recipe(1.0, 0.99)])
def test_what_cannot_be_mixed_is_said(recipe: Recipe) -> None:
    sets: list[RequestSet] = [CHATS, QuestionSet(1), videos(2, 4000.0)]
    with pytest.raises(WorkloadError, match="make no mixture"):
        recipe.mix("some", sets, 500, MODEL, seed=1)


def ids_of(prompts: Sequence[OfflinePrompt]) -> list[list[int]]:
    """As the simulator makes them."""
    backlog = PreparedBacklog(prompts, PromptEncoder(None), token_id_prompts(None, None, "some"), 100_000)
    return [backlog.token_ids(index) for index in range(len(prompts))]


def naive(prompts: Sequence[OfflinePrompt]) -> Demanded:
    """Each token by hand, with all earlier prompts to compare with."""
    total, before = Demanded(), list[list[int]]()
    for prompt, token_ids in zip(prompts, ids_of(prompts), strict=True):
        shared = 0
        for other in before:
            same = next((i for i, (a, b) in enumerate(zip(token_ids, other, strict=False)) if a != b), len(other))
            shared = max(shared, min(same, len(token_ids)) // BLOCK_TOKENS * BLOCK_TOKENS)
        before.append(token_ids)
        shared, size = min(shared, len(token_ids) - 1), len(token_ids)
        demands = MODEL.request(size, prompt.max_tokens), MODEL.request(size, prompt.max_tokens, shared)
        total += Demanded(*demands, size, shared, prompt.max_tokens)
    return total


def test_what_is_demanded_is_what_the_tokens_say(options: TraceOptions) -> None:
    drawn, filed = QuestionSet(1), QuestionSet(1, options.shots, options.questions)
    for made in (CHATS.prompts(30, 1), drawn.prompts(120, 1), filed.prompts(60, 1), videos(2, 50.0).prompts(20, 1)):
        ours, theirs = demanded(made, MODEL), naive(made)
        assert (ours.num_prompt_tokens, ours.num_output_tokens) == (theirs.num_prompt_tokens, theirs.num_output_tokens)
        assert ours.num_shared_tokens == theirs.num_shared_tokens > 0
        assert ours.density == pytest.approx(theirs.density) and ours.sharing == pytest.approx(theirs.sharing)


def test_sets_share_nothing_with_each_other(options: TraceOptions) -> None:
    sets: list[RequestSet] = [CHATS, QuestionSet(1, options.shots, options.questions), videos(2, 50.0)]
    firsts = [{tuple(token_ids[:SYSTEM_TOKENS]) for token_ids in ids_of(each.prompts(10, 1))} for each in sets]
    assert [len(each) for each in firsts] == [1, 1, 1] and len(set.union(*firsts)) == 3


def test_lengths_are_those_of_their_files(options: TraceOptions, tmp_path: Path) -> None:
    assert options.online and options.offline
    path, quantiles = tmp_path / "quantiles.jsonl", [float(number) for number in range(201)]
    lines = [
        {"model": "m-mid", "window_start_s": 0, "input_q": quantiles, "output_q": quantiles},
        {"model": "m-mid", "window_start_s": "all", "input_q": quantiles, "output_q": [5.0] * 200 + [9e9]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = DrawnSet("some", 0, of_quantiles(path, "m-mid")).prompts(2_000, 1)
    lengths = [(prompt.num_prompt_tokens or 0) - SYSTEM_TOKENS for prompt in made]
    assert statistics.fmean(lengths) == pytest.approx(100, rel=0.05) and max(lengths) < 200
    assert {prompt.max_tokens for prompt in made} == {5}
    with pytest.raises(TraceError, match="no lengths of m-large"):
        of_quantiles(path, "m-large")
    for lengths_of, file in ((of_trace, options.online), (of_summaries, options.offline)):
        text = file.read_text()
        for prompt in DrawnSet("some", 0, lengths_of(file)).prompts(20, 1):
            assert f"{(prompt.num_prompt_tokens or 0) - SYSTEM_TOKENS},{prompt.max_tokens}" in text


def test_videos_are_known_and_answers_are_not() -> None:
    made = videos(2, 4_000.0).prompts(4_000, 1)
    outputs = [prompt.max_tokens for prompt in made]
    assert statistics.fmean(outputs) == pytest.approx(4_000, rel=0.03) and max(outputs) == 8_000
    assert all(prompt.asked_tokens is None for prompt in made)
    chats = CHATS.prompts(50, 1)
    assert all((prompt.asked_tokens or 0) >= prompt.max_tokens for prompt in chats)
    assert all(prompt.asked_tokens is None for prompt in with_known_lengths(chats))
    one = DrawnSet("some", 0, apart(Lognormal(1.0, 0.1), lambda rng: 0)).prompts(1, 1)
    assert one[0].max_tokens == 1, "nobody asks for nothing"


def test_more_questions_than_there_are_is_said(options: TraceOptions) -> None:
    asked = QuestionSet(1, options.shots, options.questions)
    assert {prompt.max_tokens for prompt in asked.prompts(80, 1)} == {2}
    with pytest.raises(TraceError, match="81 questions are wanted, the file has 80"):
        asked.prompts(81, 1)


def test_the_command_draws_what_no_file_gives(tmp_path: Path) -> None:
    small = ["--size", "100", "--video-tokens", "500", "--kv-blocks", "1000", "--no-progress", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["blendserve", "fig8", *small])
    assert result.exit_code == 0, result.output
    assert "ServeGen's m-mid (drawn), MMLU (drawn)" in result.stdout
