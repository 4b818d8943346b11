"""Tests of the torch engine that run on the device, or that hold it to transformers."""

import importlib

from benchmarks.gpu.context import Context, Found
from benchmarks.gpu.run_pytest import run_pytest

FOLDER = "tests/services/executor/engines"
NAMES = ("device", "graphs", "fused", "host_pool", "models", "llama", "sampler", "warm_up")


def stage(context: Context) -> Found:
    importlib.import_module("services.executor.engines.torch.engine")  # else no test could be read
    return (yield from run_pytest(context, FOLDER, [f"{FOLDER}/test_torch_{name}.py" for name in NAMES]))
