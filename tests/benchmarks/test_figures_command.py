"""The command line of the figures."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.figures.__main__ import PAPERS, app
from benchmarks.figures.papers.hygen import HYGEN
from benchmarks.figures.trace_lab import TraceOptions
from benchmarks.harness.charts import Panel, draw
from benchmarks.harness.kept import with_section
from benchmarks.harness.origin import origin_now
from benchmarks.harness.page import EXIT_INTERRUPTED, Paper, Result, figure_progress, run_figures
from loadgen.errors import WorkloadError

ROOT = Path(__file__).parents[2]


def arguments(options: TraceOptions, out: Path) -> list[str]:
    files = ("online", "offline", "long_online", "other_offline", "shots", "questions")
    given = [part for file in files for part in (f"--{file.replace('_', '-')}", str(getattr(options, file)))]
    return [*given, "--out", str(out), "--tolerance", "0.5", "--precision", "0.5", "--no-progress"]


def test_a_figure_is_written_and_printed(options: TraceOptions, tmp_path: Path) -> None:
    (tmp_path / HYGEN.page.file).write_text("# Kept\n\n<!-- fig7 -->\nold\n<!-- /fig7 -->\n\nKept too.\n")
    result = CliRunner().invoke(app, ["hygen", "fig7", *arguments(options, tmp_path), "--duration", "5"])
    assert result.exit_code == 0, result.output
    page = (tmp_path / HYGEN.page.file).read_text()
    assert page.startswith("# Kept\n") and page.endswith("Kept too.\n") and "old" not in page
    assert "| setting | line | SLO |" in page and "| setting | line | SLO |" in result.stdout
    assert (tmp_path / HYGEN.page.images / "fig7.png").exists()


def test_missing_files_are_said_before_the_first_run(options: TraceOptions, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["hygen", "all", "--online", str(options.online), "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "--offline" in result.stderr and "--questions" in result.stderr
    assert not (tmp_path / HYGEN.page.file).exists()


def test_a_file_that_is_not_there_is_one_line(options: TraceOptions, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["hygen", "fig3", "--online", "none.csv", "--offline", str(options.offline)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "none.csv" in result.stderr


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.page.name)
def test_help_names_every_figure_in_a_line_of_its_own(paper: Paper) -> None:
    assert paper.page.name in CliRunner().invoke(app, ["--help"]).stdout
    lines = CliRunner().invoke(app, [paper.page.name, "--help"]).stdout.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in paper.figures)


def test_an_unknown_figure_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bros", "fig99", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and "overhead, pressure, all" in result.stderr


def test_an_interrupt_keeps_what_is_done(options: TraceOptions, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.figures",
        "hygen",
        "all",
        *arguments(options, tmp_path),
        "--duration",
        "12",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline().strip()  # the first figure is done
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.startswith("stopped; done and written: fig3")
    assert "<!-- /fig3 -->" in (tmp_path / HYGEN.page.file).read_text()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_ignores_is_not_lost(tmp_path: Path) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def make(name: str) -> Result:
        _ = Finalized()
        return Result([], draw([[Panel([])]], 1.0))

    with pytest.raises(typer.Exit) as ended:
        run_figures(["fig1", "fig2"], HYGEN.page, tmp_path, False, lambda name: origin_now(), lambda shown: make)
    assert ended.value.exit_code == EXIT_INTERRUPTED
    page = (tmp_path / HYGEN.page.file).read_text()
    assert "<!-- /fig1 -->" in page and "fig2" not in page


def test_a_section_is_appended_once_and_replaced_after() -> None:
    text = with_section("# Page\n", "fig1", "one")
    assert text == "# Page\n\n<!-- fig1 -->\n\none\n\n<!-- /fig1 -->\n"
    assert with_section(text, "fig1", "two") == text.replace("one", "two")


def test_a_section_without_an_end_is_refused() -> None:
    with pytest.raises(WorkloadError, match="fig1"):
        with_section("<!-- fig1 -->\n", "fig1", "two")


def test_bars_tell_the_figure_and_the_run() -> None:
    shown = io.StringIO()
    with figure_progress(Console(file=shown, force_terminal=True, width=120), True, num_figures=2) as progress:
        progress.figure("fig3")
        progress.phase("a machine, hygen: budget 20 ms", 50, 0)
        progress.online(30, 20, 0)
    assert "fig3" in shown.getvalue() and "0/2" in shown.getvalue()
    assert "a machine, hygen: budget 20 ms" in shown.getvalue() and "20/50" in shown.getvalue()
