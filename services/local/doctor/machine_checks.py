"""What ``slackwater doctor`` asks the machine: Python, cores, memory, GPU."""

import sys
from collections.abc import Sequence

from services.local.doctor.check import Check, failed, ok, warning
from services.local.stack.machine import has_cpu_torch, usable_cores
from shared.process.memory import available_memory_bytes, total_memory_bytes

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
MIB = 1024 * 1024
SERVICES_MIB = 300  # all services but the executors, as measured
EXECUTOR_MIB = 500  # one with the torch engine, before weights and KV blocks


def python_check(running: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """The interpreter's version."""
    found = ".".join(str(part) for part in running)
    if running[:2] < OLDEST_PYTHON:
        return failed("python", found, f"install Python {_dotted(OLDEST_PYTHON)} or later")
    if running[:2] > NEWEST_PYTHON:
        return warning("python", found, f"Python {_dotted(NEWEST_PYTHON)} is the newest that Slackwater is tested with")
    return ok("python", found)


def cores_check(num_cores: int | None = None) -> Check:
    """Cores that this process may use: executors and gateway share them."""
    cores = usable_cores() if num_cores is None else num_cores
    found = f"{cores} core{'s' * (cores != 1)}"
    if cores < 2:
        return warning("cores", found, "give it 2 or more: with one, the gateway waits while the engine computes")
    return ok("cores", found)


def memory_check(weights_bytes: int, executors: int, available_bytes: int | None = None) -> Check:
    """Room for the processes and the weights of each executor; KV blocks take a share of what is left."""
    available = available_memory_bytes() if available_bytes is None else available_bytes
    needed = SERVICES_MIB * MIB + executors * (EXECUTOR_MIB * MIB + weights_bytes)
    found = f"{available / MIB:,.0f} MiB of {total_memory_bytes() / MIB:,.0f} MiB available"
    if available < needed:
        remedy = f"free {(needed - available) / MIB:,.0f} MiB, or choose a smaller --model or fewer --executors"
        return warning("memory", found, remedy)
    return ok("memory", found)


def gpu_check(there: Sequence[str], device: str, engine: str) -> Check:
    """The GPUs that are there, and whether torch can use them. ``device``: the executor's setting."""
    found = ", ".join(there)
    if not there:
        if device == "cuda" and engine != "sim":
            return failed("gpu", "none", "leave device at auto or cpu in [executor], or install the NVIDIA driver")
        return ok("gpu", "none: the engine runs on the CPU")
    if engine != "sim" and device != "cpu" and has_cpu_torch():
        return warning("gpu", f"{found}; torch is built for CPUs", "install a torch with CUDA, or leave them idle")
    return ok("gpu", found)


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in number)
