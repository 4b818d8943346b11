"""The project's files as git knows them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness.origin import git


@dataclass(frozen=True, slots=True)
class Tree:
    """Of one revision. ``blobs``: names of contents, by path."""

    blobs: Mapping[str, str]
    texts: Mapping[str, str]

    def text(self, path: str) -> str:
        """Raises KeyError for a file that is no Python module."""
        return self.texts[self.blobs[path]]

    def module(self, name: str) -> str | None:
        """Its path; None for what is not of the project."""
        place = name.replace(".", "/")
        return next((each for each in (f"{place}.py", f"{place}/__init__.py") if each in self.blobs), None)

    def run_module(self, name: str) -> str | None:
        """What ``python -m`` runs of it."""
        main = f"{name.replace('.', '/')}/__main__.py"
        return main if main in self.blobs else self.module(name)


@cache
def tree_of(root: Path, revision: str, folders: Sequence[str]) -> Tree | None:
    """None for a revision that is not in the repository."""
    listed = git(root, "ls-tree", "-r", revision, "--", *folders)
    if listed is None:
        return None
    entries = [line.partition("\t") for line in listed.splitlines()]
    blobs = {path: head.split()[2] for head, _, path in entries}
    return Tree(blobs, _texts(root, [blob for path, blob in blobs.items() if path.endswith(".py")]))


def _texts(root: Path, blobs: Sequence[str]) -> Mapping[str, str]:
    """By blob."""
    known = _known(root)
    asked = [blob for blob in dict.fromkeys(blobs) if blob not in known]
    command, objects = ("git", "cat-file", "--batch"), "".join(f"{blob}\n" for blob in asked)
    said = subprocess.run(command, cwd=root, input=objects.encode(), capture_output=True, check=True).stdout
    at = 0
    for blob in asked:
        end = said.index(b"\n", at)
        begin, size = end + 1, int(said[at:end].rpartition(b" ")[2])
        known[blob], at = said[begin : begin + size].decode(errors="replace"), begin + size + 1
    return known


@cache
def _known(root: Path) -> dict[str, str]:
    """What has been read."""
    return {}
