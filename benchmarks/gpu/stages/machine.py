"""What this machine is, and what of that which the other stages use is installed."""

import importlib.metadata
import os
import platform
import shutil
import subprocess

import torch

from benchmarks.gpu.context import Context, Found, SkippedError
from services.executor.engines.torch.device import device_name

PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "transformers",
    "msgspec",
    "sortedcontainers",
    "typer",
    "pytest",
    "hypothesis",
    "matplotlib",
    "flashinfer-python",
    "vllm",
)


def stage(context: Context) -> Found:
    """Skipped where a GPU is asked for and torch sees none."""
    versions = {package: _version(package) for package in PACKAGES}
    is_gpu = context.device == "cuda" and torch.cuda.is_available()
    facts = _gpu_facts() if is_gpu else {"processor": device_name(torch.device("cpu"), os.cpu_count() or 1)}
    facts |= {"system": platform.platform(), "Python": platform.python_version()}
    for what, found in {**facts, **versions}.items():
        yield {"what": what, "found": found or "not installed"}
    if context.device == "cuda" and not is_gpu:
        raise SkippedError(f"torch {torch.__version__} sees no CUDA device here")
    triton = f"Triton {versions['triton']}" if versions["triton"] else "no Triton"
    if not is_gpu:
        return f"{facts['processor']}, torch {torch.__version__}, {triton}"
    return f"{facts['GPU']}, driver {facts['driver']}, torch {torch.__version__}, {triton}"


def _gpu_facts() -> dict[str, str]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "GPU": f"{properties.name}" + f", the first of {torch.cuda.device_count()}" * (torch.cuda.device_count() > 1),
        "memory": f"{properties.total_memory / 2**30:.1f} GiB",
        "compute capability": f"{properties.major}.{properties.minor}",
        "SMs": str(properties.multi_processor_count),
        "CUDA of torch": str(torch.version.cuda),
        "driver": _driver(),
    }


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


def _version(package: str) -> str | None:
    """None where it is not installed. vLLM for CPUs has a name of its own."""
    for name in (package, f"{package}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
