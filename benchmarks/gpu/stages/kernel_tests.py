"""The kernels' tests."""

import importlib.util

from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.run_pytest import run_pytest

FOLDER = "tests/kernels"
BY_HYPOTHESIS = f"{FOLDER}/test_slots.py"


def stage(context: Context) -> Found:
    left_out = []
    if importlib.util.find_spec("hypothesis") is None:
        left_out.append(f"--ignore={BY_HYPOTHESIS}")
        yield f"Without {BY_HYPOTHESIS}: hypothesis is not installed."
    return (yield from run_pytest(context, FOLDER, [FOLDER, *left_out]))
