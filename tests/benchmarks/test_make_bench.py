"""``make bench``: which benchmarks it runs by themselves, and how one is named."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
INSTALLED = (f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed-dev")  # nothing is installed for this


def made(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *INSTALLED, *words], cwd=ROOT, capture_output=True, text=True)


def options_needed(file: Path) -> list[str]:
    """Those of its benchmark that have no default."""
    functions = [each for each in ast.parse(file.read_text()).body if isinstance(each, ast.FunctionDef)]
    (main,) = [each for each in functions if any(ast.unparse(by) == "benchmark" for by in each.decorator_list)]
    names = [each.arg for each in main.args.args]
    return names[: len(names) - len(main.args.defaults)]


def test_what_it_runs_unasked_needs_no_options() -> None:
    names = made("-s", "--eval", "print:;@echo $(BENCHMARKS)", "print").stdout.split()
    assert {"bus/bus_turn", "simulator/step_sizes"} <= set(names)
    needed = {name: options_needed(ROOT / "benchmarks" / f"{name}.py") for name in names}
    assert not any(needed.values()), needed


def test_one_is_named_by_its_file_and_where_that_is_not_enough_by_its_folder_too() -> None:
    planning = made("bench", "BENCHMARKS=planning", "ARGS=--help")
    assert "python -m benchmarks.scheduling.planning [OPTIONS]" in planning.stdout
    two = made("bench", "BENCHMARKS=step_sizes", "ARGS=--help")
    assert two.returncode != 0
    assert "one of benchmarks/engine/step_sizes.py benchmarks/simulator/step_sizes.py" in two.stderr
    own = made("bench", "BENCHMARKS=simulator/step_sizes", "ARGS=--help")
    assert own.returncode == 0 and "python -m benchmarks.simulator.step_sizes" in own.stdout
    assert "no benchmark nothing" in made("bench", "BENCHMARKS=nothing").stderr
