"""The kernels compile for real GPUs, which needs none: they fit an SM, spill no registers, and keep loads in flight."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FEW_BYTES = 64  # of stack: registers that Triton 3.6 finds no room for, outside of loops
SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}  # that CUDA lets one program have


def cuobjdump() -> bool:
    """In Triton's wheel for Linux."""
    spec = importlib.util.find_spec("triton")
    return bool(spec and spec.origin and (Path(spec.origin).parent / "backends/nvidia/bin/cuobjdump").exists())


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # where nothing is compiled yet
    pytest.mark.skipif(not cuobjdump(), reason="needs the tools in Triton's wheel"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("msgspec", "typer")),
        reason="needs what the benchmark's command does",
    ),
]


@cache
def compiled(case: int) -> list[dict[str, Any]]:
    """For every capability, in a process of its own: this one may run Triton's interpreter."""
    command = [sys.executable, "-m", "benchmarks.kernels.kernel_resources", "--json", "--case", str(case)]
    command += [option for capability in SHARED_BYTES for option in ("--capability", str(capability))]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    found: list[dict[str, Any]] = json.loads(finished.stdout)
    return found


def compiled_for(capability: int, case: int) -> list[dict[str, Any]]:
    kernels = [kernel for kernel in compiled(case) if kernel["capability"] == capability]
    assert kernels
    return kernels


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("case", range(11))
def test_kernels_fit_an_sm(case: int, capability: int) -> None:
    kernels = compiled_for(capability, case)
    attention = [kernel for kernel in kernels if kernel["kernel"] == "attention_kernel"]
    assert len(attention) == 3, "decodes without and with splits, and chunks"
    fused = [kernel for kernel in kernels if kernel["kernel"] == "fused_attention_kernel"]
    num_fused = 0 if any(large in kernels[0]["case"] for large in ("float32, head 256", "head 512")) else 3
    assert len(fused) == num_fused, "splits of neither, of decodes, of both"
    assert {"reduce_splits_kernel", "write_kv_kernel", "copy_slots_kernel"} <= {kernel["kernel"] for kernel in kernels}
    for kernel in kernels:
        assert kernel["shared_bytes"] <= SHARED_BYTES[capability], kernel
        float32_256 = "float32, head 256" in kernel["case"]
        assert kernel["stack_bytes"] <= (128 if float32_256 else FEW_BYTES), kernel
    for kernel in fused:
        assert kernel["programs_per_sm"] >= 2, "room for a decode's beside a chunk's"
    for kernel in attention + fused:
        assert kernel["async_copies"] and kernel["tensor_core_instructions"], kernel
    for kernel in kernels:
        if kernel["kernel"] == "copy_slots_kernel":
            assert kernel["wide_loads"], kernel


@pytest.mark.parametrize("case", range(11))
def test_kernels_fit_an_sm_with_little_shared_memory(case: int) -> None:
    for kernel in compiled_for(89, case):
        assert kernel["shared_bytes"] <= SHARED_BYTES[89], kernel
