"""What is drawn beside the stack, and what a knob turns."""

import ast
import importlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.checker.violation import Limits
from tests.simulation.knobs import (
    DEFAULTS_SHARE,
    HEARTBEAT,
    IDLE_BATCH_S,
    IDLE_PAUSE_S,
    KNOBS,
    later_s,
    limits_of,
    turned,
)
from tests.simulation.setup import Setup, draw_setup

ROOT = Path(__file__).parents[2]
SETUPS = [draw_setup(str(seed)) for seed in range(400)]


def test_the_same_seed_has_the_same_stack_and_knobs() -> None:
    assert SETUPS[:20] == [draw_setup(str(seed)) for seed in range(20)]
    assert len({str(setup.knobs) for setup in SETUPS}) > 200


def test_some_stacks_are_run_as_the_services_are_by_default() -> None:
    by_default = [setup for setup in SETUPS if not setup.knobs]
    assert len(by_default) / len(SETUPS) == pytest.approx(DEFAULTS_SHARE, abs=0.06)
    usual = Setup()
    for setup in by_default:
        assert (setup.block_size, setup.drain_s, setup.drain_on_stop_s) == (16, 20.0, 0.0)
        assert (setup.max_flex_requests, setup.window, setup.latency_model) == (256, 4096, "roofline")
        assert (setup.pool_mb, setup.max_waiting_requests) == (usual.pool_mb, usual.max_waiting_requests)


@pytest.mark.parametrize("name", KNOBS)
def test_all_that_a_knob_may_be_is_drawn(name: str) -> None:
    assert {setup.knobs[name] for setup in SETUPS if setup.knobs} == set(KNOBS[name].times)
    assert 1.0 in KNOBS[name].times


def test_the_memory_of_a_stack_is_the_same_with_other_blocks() -> None:
    for setup in SETUPS:
        assert setup.kv_blocks * setup.block_size in (128 * 16, 256 * 16, 1024 * 16)


@pytest.mark.parametrize("name", KNOBS)
def test_a_knob_turns_all_that_belongs_together_for_a_while(name: str) -> None:
    before = _values(name)
    with turned({name: 4.0}):
        assert _values(name) == [4.0 * value for value in before]
    assert _values(name) == before


def _values(name: str) -> list[float]:
    places = (constant.rpartition(".") for constant in KNOBS[name].constants)
    return [getattr(importlib.import_module(module), attribute) for module, _, attribute in places]


@pytest.mark.parametrize("name", KNOBS)
def test_who_reads_what_a_knob_turns_does_so_when_it_is_needed(name: str) -> None:
    """One that keeps it from its import on, or under a name of its own, would not be turned with the others."""
    constants = set(KNOBS[name].constants)
    for module, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                taken = [alias for alias in node.names if f"{node.module}.{alias.name}" in constants]
                assert all(f"{module}.{alias.asname or alias.name}" in constants for alias in taken), module
        for statement in tree.body:
            if any(f"{module}.{read}" in constants for read in _read_at_import(statement)):
                assert isinstance(statement, ast.Assign), f"{module} line {statement.lineno}"
                assert all(f"{module}.{ast.unparse(target)}" in constants for target in statement.targets), module


def _trees() -> Iterator[tuple[str, ast.Module]]:
    """Of all modules of the product, by name."""
    for path in chain.from_iterable((ROOT / folder).rglob("*.py") for folder in ("services", "shared", "loadgen")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), ast.parse(path.read_bytes())


def _read_at_import(node: ast.AST) -> Iterator[str]:
    """Names that are read when the module is imported."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        children: list[ast.AST] = [node.args, *node.decorator_list]
    elif isinstance(node, ast.Lambda):
        children = [node.args]
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _read_at_import(child)


def test_bounds_are_the_usual_ones_without_knobs_and_wider_with_slower_ones() -> None:
    usual = Limits(late_s=0.0, idle_pause_s=IDLE_PAUSE_S, idle_batch_s=IDLE_BATCH_S)
    assert limits_of({}) == limits_of(dict.fromkeys(KNOBS, 1.0)) == usual
    assert limits_of(dict.fromkeys(KNOBS, 0.2)) == usual
    slow = limits_of({HEARTBEAT: 4.0, "lease": 3.0})
    assert later_s({HEARTBEAT: 4.0, "lease": 3.0}) == 3 * 5.0 + 2 * 10.0
    assert slow.stream_s > usual.stream_s and slow.gone_s > usual.gone_s and slow.key_settles_s > usual.key_settles_s
    assert slow.beats_s == 4 * usual.beats_s


def test_who_drains_has_the_time_for_it() -> None:
    setup = Setup(drain_s=5.0, drain_on_stop_s=3.0)
    assert [setup.drain_s_of(name) for name in ("gateway-1", "executor-0", "offline-queue")] == [5.0, 3.0, 0.0]


def test_a_setup_is_told_in_words_that_json_knows() -> None:
    told = SETUPS[1].told()
    assert told["knobs"] == SETUPS[1].knobs and told["strategy"]["preset"] == SETUPS[1].strategy.preset
    assert told["num_executors"] == SETUPS[1].num_executors


@pytest.mark.parametrize("name", KNOBS)
def test_the_page_on_reliability_tells_of_it(name: str) -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
    times = KNOBS[name].times
    assert row.endswith(f"| {min(times):g} to {max(times):g} |")
