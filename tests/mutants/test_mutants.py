"""The command that changes modules: which changes it makes, that they take hold, and that nothing is left of them."""

import ast
import gc
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.scheduling.placement.role import Role
from tests.mutants.__main__ import EQUIVALENTS, told_equivalents
from tests.mutants.campaign import exit_code
from tests.mutants.code import exchanged, functions_of, reporting
from tests.mutants.mutations import mutants_of, mutated
from tests.mutants.nearest import TESTS, nearest_tests

ROLE = "shared/scheduling/placement/role.py"
SMALL = '''
LIMIT = 3


def clamped(value: int, least: int = 0) -> int:
    """No less, and no more than 3."""
    assert least <= LIMIT
    if value < least and LIMIT:
        return least
    return min(value, LIMIT, key=abs)
'''


def test_a_change_is_of_one_place_in_a_functions_body(tmp_path: Path) -> None:
    (small := tmp_path / "small.py").write_text(SMALL)
    mutants = mutants_of(str(small))
    assert [(each.line, each.before, each.after) for each in mutants] == [
        (8, "value < least and LIMIT", "value < least or LIMIT"),
        (8, "value < least and LIMIT", "LIMIT"),
        (8, "value < least and LIMIT", "value < least"),
        (8, "value < least", "value <= least"),
        (8, "value < least", "value >= least"),
        (10, "min(value, LIMIT, key=abs)", "max(value, LIMIT, key=abs)"),
        (10, "min(value, LIMIT, key=abs)", "min(value, LIMIT)"),
    ]
    before = ast.unparse(ast.parse(SMALL)).splitlines()
    for mutant in mutants:
        after = ast.unparse(mutated(mutant)).splitlines()
        assert len(after) == len(before) and sum(a != b for a, b in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("is_frozen", [False, True], ids=["as they are", "frozen"])
def test_functions_are_exchanged_where_they_stand(is_frozen: bool) -> None:
    if is_frozen:  # as a service begins
        gc.freeze()
    is_for_prompts = Role.is_for_prompts.fget
    assert is_for_prompts is not None
    code, held = is_for_prompts.__code__, [role for role in Role if role.is_for_prompts]
    mutant = next(each for each in mutants_of(ROLE) if each.function == "Role.is_for_prompts")
    with exchanged(ROLE, mutated(mutant), functions_of([ROLE])[ROLE]):
        assert [role for role in Role if role.is_for_prompts] != held
    assert is_for_prompts.__code__ is code and [role for role in Role if role.is_for_prompts] == held


def test_of_lambdas_on_one_line_none_is_exchanged(tmp_path: Path) -> None:
    (two := tmp_path / "two.py").write_text("def both(a):\n    return (lambda: a), (lambda b: b)\n")
    made: dict[str, Any] = {}
    exec(compile(two.read_text(), str(two), "exec"), made)
    held = made["both"](1)
    with exchanged(str(two), reporting(str(two), "print"), functions_of([str(two)])[str(two)]):
        assert [held[0](), held[1](2)] == [1, 2]


def test_which_statements_run_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[str, int]] = set()
    monkeypatch.setattr("builtins.note_line", seen.add, raising=False)
    with exchanged(ROLE, reporting(ROLE, "note_line"), functions_of([ROLE])[ROLE]):
        assert Role.MIXED.is_for_prompts
    in_property = {each.function == "Role.is_for_prompts" for each in mutants_of(ROLE) if (ROLE, each.line) in seen}
    assert in_property == {True}


def test_modules_have_tests_that_are_there() -> None:
    for place, patterns in TESTS.items():
        assert Path(place).exists() and all(list(Path().glob(pattern)) for pattern in patterns), place
        assert nearest_tests(place if place.endswith(".py") else f"{place}/module.py")
    with pytest.raises(KeyError):
        nearest_tests("services/gateway/service.py")


def test_what_is_told_to_be_equivalent_is_a_change_that_is_made() -> None:
    told = told_equivalents()
    made = {
        (mutant.path, mutant.function, mutant.before, mutant.after)
        for path in {module for module, *_ in told}
        for mutant in mutants_of(path)
    }
    assert told <= made, f"no longer in {EQUIVALENTS.name}: {told - made}"


def test_the_command_counts_what_becomes_of_each() -> None:
    command = [sys.executable, "-m", "tests.mutants", ROLE, "--tests", "tests/shared/scheduling/test_role.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    head, _, row = done.stdout.strip().splitlines()[-3:]
    assert head.split("|")[2:-1] == [" mutants ", " killed ", " equivalent ", " alive "]
    total, killed, equivalent, alive = map(int, row.split("|")[2:-1])
    assert total == killed + equivalent + alive and killed > 0


@pytest.mark.parametrize(("then", "wait_s", "code"), [("exit 3", 60.0, 3), ("wait", 0.1, -signal.SIGKILL)])
def test_what_tests_have_started_ends_with_the_process_that_runs_them(then: str, wait_s: float, code: int) -> None:
    """And this one where it does not end."""
    command = ["sh", "-c", f"sleep 1000 & echo $!; {then}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        started = psutil.Process(int(process.stdout.readline()))
        assert exit_code(process.pid, wait_s) == code
        psutil.wait_procs([started], 60)
        assert not started.is_running()
