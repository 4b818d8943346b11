"""The tables of the documentation: each is kept with its origin, shown as it is kept, and known to be old."""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from benchmarks.figures.__main__ import PAPERS
from benchmarks.harness.kept import BEGINS, Kept, Place, all_kept, keep
from benchmarks.harness.origin import OWN_SEEDS, Origin, command_line, machine, origin_now, revision
from benchmarks.harness.page import EXIT_INTERRUPTED
from benchmarks.harness.table import Told
from benchmarks.results.__main__ import make, pages, show_ages
from benchmarks.results.again import jobs_of
from benchmarks.results.code import FOLDERS, SHOWING, age_of, file_of, meanings_below, module_of, paths_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
KEPT = all_kept(DOCS)
ROW = {"n": "1", "ms": "2.0"}
HOW_IT_IS_ASKED = (*SHOWING, "shared/settings/")  # and shown


def made_by(command: str | None, revision: str | None = None) -> Kept:
    return Kept(Origin(command=command, date="2026-01-02", revision=revision, machine=None, seed="seed 7"), [ROW])


def git(folder: Path, *words: str) -> str:
    command = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", *words)
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, **files: str) -> str:
    """Modules by their names with ``__`` for dots; the revision."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-m", f"{', '.join(files)} changed")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A benchmark that imports one module and, in a function, another; a third belongs to nobody."""
    git(tmp_path, "init")
    bench = "from shared import near\n\n\ndef main():\n    from kernels.far import far\n\n    return near.step, far\n"
    modules = {"shared__near": "step = 1\n", "kernels__far": "far = 1\n", "services__other": ""}
    commit(tmp_path, benchmarks__bench=bench, **modules)
    return tmp_path


def test_each_page_shows_what_is_kept_of_it() -> None:
    for page, text in pages(KEPT, DOCS).items():
        assert page.read_text() == text, f"{page}: python -m benchmarks.results --render"


def test_each_table_of_the_benchmarks_is_one_that_is_kept() -> None:
    page = (DOCS / "benchmarks.md").read_text()
    names = [match["name"] for match in BEGINS.finditer(page)]
    assert set(names) == {place.name for place in KEPT if place.page == "benchmarks"} and len(names) > 40
    for name in names:
        page = re.sub(f"^<!-- {name} -->$.*?^<!-- /{name} -->$", "", page, flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in page.splitlines() if line.startswith("|")]


def test_the_origin_of_each_table_is_known() -> None:
    origins = {str(place): each.origin for place, each in KEPT.items()}
    assert not [
        place
        for place, origin in origins.items()
        if None in (origin.command, origin.date, origin.revision, origin.machine, origin.seed)
    ]


def test_every_benchmark_that_made_a_table_is_there() -> None:
    modules = {str(each.origin.command): module_of(str(each.origin.command)) for each in KEPT.values()}
    assert len({*modules.values()}) > 25
    assert not [command for command, module in modules.items() if module is None or file_of(module, ROOT) is None]
    figures = {f"python -m benchmarks.figures {paper.page.name} {name}" for paper in PAPERS for name in paper.figures}
    made = {str(each.origin.command) for each in KEPT.values() if "benchmarks.figures" in str(each.origin.command)}
    assert not {command for command in made if shlex.join(shlex.split(command)[:5]) not in figures}


def test_the_origin_stands_below_the_table() -> None:
    assert made_by("slackwater simulate").markdown().splitlines()[-1] == (
        "*`slackwater simulate`; 2026-01-02; revision unknown; machine unknown; seed 7.*"
    )


def test_what_is_kept_is_read_as_it_was_written_and_replaced_in_its_page(tmp_path: Path) -> None:
    place, page = Place.of("some/table"), tmp_path / "some.md"
    first: Told = ["About.", ROW]
    for told in (first, [*first, {"other": "1"}, "Done."]):
        kept = Kept(origin_now(words=[]), told)
        keep(tmp_path, place, kept, title="Some")
        assert all_kept(tmp_path) == {place: kept}
        assert page.read_text() == f"# Some\n\n<!-- table -->\n\n{kept.markdown()}\n\n<!-- /table -->\n"


def test_the_origin_of_a_run_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").touch()
    line = command_line(["--online", str(tmp_path / "trace.csv"), "--keep", "a/b", "--out", str(tmp_path / "later")])
    assert line.endswith("--online trace.csv --out later")
    now = origin_now()
    assert now.seed == OWN_SEEDS and now.revision and " cores, " in machine() and str(now.date) >= "2026-11-24"


def test_a_revision_is_dirty_when_code_has_changed_but_not_when_a_page_has(project: Path) -> None:
    commit(project, docs__page="")
    clean = revision(project)
    assert clean and git(project, "rev-parse", "HEAD").startswith(clean) and len(clean) == 12
    (project / "docs" / "page.py").write_text("changed = True\n")
    assert revision(project) == clean
    (project / "services" / "other.py").write_text("changed = True\n")
    assert revision(project) == f"{clean}-dirty"


def test_a_table_is_older_when_what_its_benchmark_imports_has_changed(project: Path) -> None:
    at = git(project, "rev-parse", "HEAD")
    origin = made_by("python -m benchmarks.bench --fast", at).origin
    assert paths_of(origin.command or "", project) == ["benchmarks/bench.py", "kernels/far.py", "shared/near.py"]
    commit(project, services__other="changed = True\n")
    assert age_of(origin, project).words() == "as new as its code"
    commit(project, kernels__far="far = 2\n")
    commit(project, shared__near="step = 2\n")
    age = age_of(origin, project)
    assert [line.split(maxsplit=1)[1] for line in age.commits] == ["shared__near changed", "kernels__far changed"]
    assert age.words().startswith("older than its code by 2 commits, the last ")


def test_a_table_is_as_new_as_code_of_which_only_words_have_changed(project: Path) -> None:
    commit(project, shared__near='"""Near."""\n\n\ndef step() -> int:\n    """One."""\n    return 1\n')
    origin = made_by("python -m benchmarks.bench", git(project, "rev-parse", "HEAD")).origin
    commit(project, shared__near='"""Not far."""\n\n\ndef step() -> int:\n    return 1  # one\n')
    assert age_of(origin, project).words() == "as new as its code"
    commit(project, shared__near='"""Not far."""\n\n\ndef step() -> int:\n    return 2\n')
    (commit_line,) = age_of(origin, project).commits
    assert commit_line == git(project, "log", "-1", "--format=%h %s")


def test_a_commit_that_moves_code_is_none_of_those_that_made_a_table_older(project: Path) -> None:
    bench = "from kernels.{} import far\n\n\ndef main():\n    return far\n"
    at = commit(project, benchmarks__bench=bench.format("far"))
    commit(project, kernels__far="far = 2\n")
    changed = git(project, "log", "-1", "--format=%h %s")
    commit(project, kernels__moved="far = 2\n", kernels__far="", benchmarks__bench=bench.format("moved"))
    assert age_of(made_by("python -m benchmarks.bench", at).origin, project).commits == [changed]


NEAR = """
from kernels.far import far
import services.other

step = far


def unused():
    return services.other.figure


if __name__ == "__main__":
    unused()
"""


@pytest.mark.parametrize(
    ("changes", "is_older"),
    [
        ({"shared__near": NEAR.replace("figure", "words")}, False),
        ({"services__other": "figure = 2\n"}, False),
        ({"shared__near": NEAR.replace("unused()\n", "print()\n")}, False),  # where it is run itself
        ({"shared__near": NEAR + "print()\n"}, True),  # when it is loaded
        ({"services__other": "figure = 1\nprint()\n"}, True),
        ({"services__other": "figure = 1\n\n\n@register\ndef other(): ...\n"}, True),  # somebody may call it
        ({"services__other": "figure = 1\n\n\n@cache\ndef other(): ...\n"}, False),
        ({"kernels__far": "far = 2\n"}, True),
        ({"kernels__far": "far = 1\nother = 2\n"}, False),
        ({"kernels__moved": "far = 1\n", "shared__near": NEAR.replace("kernels.far", "kernels.moved")}, False),
        ({"kernels__moved": "far = 2\n", "shared__near": NEAR.replace("kernels.far", "kernels.moved")}, True),
        ({"kernels__far": "class far:\n    a: int = 1\n"}, True),
    ],
)
def test_a_table_rests_on_what_its_benchmark_names(project: Path, changes: dict[str, str], is_older: bool) -> None:
    """And on what that names, whichever module it is in; of other modules on what runs when they are loaded."""
    at = commit(project, shared__near=NEAR, services__other="figure = 1\n")
    commit(project, **changes)
    assert age_of(made_by("python -m benchmarks.bench", at).origin, project).is_new is not is_older


@pytest.mark.slow
def test_what_a_run_of_a_benchmark_calls_is_what_its_table_rests_on(tmp_path: Path) -> None:
    if git(ROOT, "status", "--porcelain", "--", *FOLDERS):
        pytest.skip("the code is not that of HEAD")
    called = tmp_path / "called.json"
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks.calls",
        str(called),
        "benchmarks.scheduling.planning",
        "--rounds",
        "1",
    ]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    meanings = meanings_below("python -m benchmarks.scheduling.planning", ROOT, "HEAD")
    assert meanings is not None
    parts = {path: {name for name, _ in each} for path, each in meanings.items()}
    calls = [(path, name) for path, name in json.loads(called.read_text()) if not path.startswith(HOW_IT_IS_ASKED)]
    assert len(calls) > 50
    assert not [(path, name) for path, name in calls if name not in parts.get(path, ())]


def test_what_runs_the_product_rests_on_all_of_it() -> None:
    errors, page = "services/gateway/http/errors.py", "services/gateway/static/index.html"
    assert {errors, page} < set(paths_of("python -m benchmarks.bus.pipeline"))
    simulated = paths_of("python -m benchmarks.simulator.simulate")
    assert "shared/replica/replica.py" in simulated and errors not in simulated
    assert errors in paths_of("slackwater replay --online trace.csv")
    assert "benchmarks/figures/papers/echo.py" not in paths_of("python -m benchmarks.figures bros rates")


@pytest.mark.parametrize(
    "command, revision, why",
    [
        ("python -m benchmarks.bench", None, "no revision"),
        ("python -m benchmarks.bench", "0123456789ab", "not in this repository"),
        ("python -m benchmarks.gone", "HEAD", "no command"),
        (None, "HEAD", "no command"),
        ("python -m benchmarks.bench", "HEAD-dirty", "what was not committed"),
    ],
)
def test_what_is_not_known_is_said_and_not_taken_for_new(
    project: Path, command: str | None, revision: str | None, why: str
) -> None:
    kept = made_by(command, revision)
    age = age_of(kept.origin, project)
    assert not age.commits and not age.is_new and why in age.words()
    keep(project / "docs", Place("page", "table"), kept)
    assert show_ages(all_kept(project / "docs"), project / "docs", project)


def test_a_table_of_another_branch_is_not_as_new_as_its_code(project: Path) -> None:
    """Whether it goes on from here, or from before."""
    before = git(project, "rev-parse", "HEAD")
    made_at = commit(project, kernels__far="changed = True\n")
    origin = made_by("python -m benchmarks.bench", made_at).origin
    assert age_of(origin, project).is_new
    git(project, "reset", "--hard", before)
    for text in ("changed = True\n", ""):
        age = age_of(origin, project)
        assert f"revision {made_at} has another kernels/far.py" in age.words() and not age.is_new
        commit(project, services__other=text)


def test_a_shallow_clone_says_what_it_lacks(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    at, clone = git(project, "rev-parse", "HEAD"), tmp_path_factory.mktemp("clone")
    commit(project, shared__near="changed = True\n")
    git(clone, "clone", "--depth", "1", f"file://{project}", "here")
    age = age_of(made_by("python -m benchmarks.bench", at).origin, clone / "here")
    assert age.words() == f"unknown: revision {at} is not in this shallow clone: git fetch --unshallow"


def test_a_check_names_older_tables_and_pages_that_show_something_else(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, place = project / "docs", Place("page", "table")
    docs.mkdir()
    keep(docs, place, made_by("python -m benchmarks.bench", git(project, "rev-parse", "HEAD")))
    assert not show_ages(all_kept(docs), docs, project)
    (docs / "page.md").write_text((docs / "page.md").read_text().replace("2.0", "1.0"))
    assert show_ages(all_kept(docs), docs, project)
    assert "page.md shows something else" in capsys.readouterr().out
    keep(docs, place, all_kept(docs)[place])
    commit(project, shared__near="changed = True\n")
    assert show_ages(all_kept(docs), docs, project)
    assert "page/table  older than its code by 1 commit, the last" in capsys.readouterr().out


def test_figures_of_one_paper_with_the_same_options_are_one_command(tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl.gz").touch()
    commands = {
        "bros/rates": "python -m benchmarks.figures bros rates --duration 60",
        "bros/kv": "python -m benchmarks.figures bros kv --duration 60",
        "bros/pressure": "python -m benchmarks.figures bros pressure --duration 150",
        "benchmarks/batch": "python -m benchmarks.gateway.batch_scale -- --pool-mb 32",
        "benchmarks/alone": "python -m benchmarks.vllm.alone --prompts gsm8k_test.jsonl.gz",
        "vllm_side_by_side/small": "python -m benchmarks.vllm --name small --load 50",
    }
    jobs = jobs_of({Place.of(place): made_by(command) for place, command in commands.items()})
    words = [job.words(tmp_path)[2:] for job in jobs]
    assert words[0] == ["benchmarks.figures", "bros", "rates", "kv", "--duration", "60"]
    assert words[1] == ["benchmarks.figures", "bros", "pressure", "--duration", "150"]
    assert words[2] == ["benchmarks.gateway.batch_scale", "--keep", "benchmarks/batch", "--", "--pool-mb", "32"]
    assert words[4] == ["benchmarks.vllm", "--name", "small", "--load", "50"]
    assert words[3][-1] == str(tmp_path / "gsm8k_test.jsonl.gz")
    assert jobs[3].missing(tmp_path) == [] and jobs[3].missing(tmp_path / "docs") == ["gsm8k_test.jsonl.gz"]


def test_what_cannot_be_run_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    commands = {
        "page/gone": "python -m benchmarks.gone --online trace.csv",
        "page/files": "python -m benchmarks.vllm.alone --prompts gsm8k_test.jsonl.gz",
        "page/broken": "python -m benchmarks.simulator.slo_search --no-such-option",
    }
    console = Console(record=True, width=200)
    jobs = jobs_of({Place.of(place): made_by(command) for place, command in commands.items()})
    assert make(jobs, tmp_path, console) == 1
    said = console.export_text()
    assert "1/3 page/gone: left out, no benchmark makes it: python -m benchmarks.gone" in said
    assert "--data has no gsm8k_test.jsonl.gz" in said and "no-such-option" in said


def test_a_command_keeps_its_table_anew_and_an_interrupt_leaves_it(tmp_path: Path) -> None:
    docs, place = tmp_path / "docs", Place("page", "table")
    docs.mkdir()
    again = [sys.executable, "-m", "benchmarks.results"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    command = "python -m benchmarks.scheduling.mix_samples --online 2 --offline 2 --seeds 1 --steps"
    keep(docs, place, made_by(f"{command} 5"))
    subprocess.run(again, cwd=tmp_path, env=environ, check=True, capture_output=True)
    kept = all_kept(docs)[place]
    assert kept.origin.command == f"{command} 5"
    assert len(kept.told) == 8 and kept.markdown() in (docs / "page.md").read_text()

    keep(docs, place, made_by(f"{command} 1000000000"))
    for _ in range(3):  # at other moments of the command's beginning
        with subprocess.Popen(again, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr and "1/1 page/table: python -m" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert process.returncode == EXIT_INTERRUPTED and errors.endswith("stopped; done and written: nothing\n")
        assert not [each.cmdline() for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(tmp_path)]
    assert all_kept(docs)[place].told == [ROW]
