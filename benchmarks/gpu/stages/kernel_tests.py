"""The kernels' tests."""

from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.run_pytest import run_pytest


def stage(context: Context) -> Found:
    return (yield from run_pytest(context, "tests/kernels", ["tests/kernels"]))
