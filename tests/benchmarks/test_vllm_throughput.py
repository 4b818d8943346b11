"""The turns of the torch engine and vLLM beside each other."""

import importlib.util
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.harness.turns import Times
from benchmarks.vllm.throughput import ENGINES, measure, row, worker
from shared.errors import ModelError


def check_turns(engines: tuple[str, ...], model_folder: Path) -> None:
    """The orders reach the engines, and each has as many turns as the other: a step of a batch samples a token for each
    request, a prefill one after its last chunk."""
    cases = {("decode", 1, 20): [1], ("decode", 32, 20): [32], ("prefill", 8): [1], ("prefill", 600): [0, 1]}
    with ExitStack() as started:
        workers = {engine: started.enter_context(worker(engine, model_folder, 1)) for engine in engines}
        for case, turn in cases.items():
            for order in (case, "again", "again"):
                assert [take(order)[1] for take in workers.values()] == [turn] * len(engines)
            for take in workers.values():
                take("finish")
            times = measure(workers, case, 2)
            for engine in engines:
                assert len(times[engine].clock_ms) == len(times[engine].cpu_ms) == 2
                assert min(times[engine].clock_ms + times[engine].cpu_ms) > 0.0


@pytest.mark.slow
def test_turns_of_the_torch_engine(model_folder: Path) -> None:
    check_turns(("torch",), model_folder)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_turns_of_both(model_folder: Path) -> None:
    check_turns(ENGINES, model_folder)


@pytest.mark.slow
def test_an_engine_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    with worker("torch", tmp_path, 1) as take, pytest.raises(ModelError, match=str(tmp_path)):
        take(("decode", 1, 20))


def test_a_row_tells_the_fastest_turns() -> None:
    times = {"torch": Times([30.0, 20.0], [18.0, 19.0]), "vllm": Times([40.0, 60.0], [36.0, 50.0])}
    cells = ["decode", "2", "20.0", "40.0", "18.0", "36.0", "400", "200", "2.00", "2.00"]
    assert list(row("decode", 2, 8, times).values()) == cells
