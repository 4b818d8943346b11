"""Which files a command's figures rest on, and what was changed in them since. Comments and docstrings do not count."""

import ast
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness.origin import DIRTY, ROOT, Origin, git

PRODUCT = ("services", "shared", "kernels", "loadgen")
STARTERS = ("benchmarks/harness/stack.py", "benchmarks/harness/local_stack.py")
"""Whoever imports these measures processes that run the whole product."""
SHOWN_BY = ("charts", "command", "kept", "origin", "page", "table")
SHOWING = tuple(f"benchmarks/harness/{name}.py" for name in SHOWN_BY)  # how figures are shown, not what they are
FIGURES = "benchmarks.figures"  # papers'


@dataclass(frozen=True, slots=True)
class Age:
    """``commits``: hash and subject of those that changed the code after the table was made, the newest first;
    ``unknown``: why that cannot be said, else empty."""

    commits: Sequence[str] = ()
    unknown: str = ""

    @property
    def is_new(self) -> bool:
        """The code is as it was, for all that is known."""
        return not (self.commits or self.unknown)

    def words(self) -> str:
        if self.unknown:
            return f"unknown: {self.unknown}"
        if not self.commits:
            return "as new as its code"
        times = "1 commit" if len(self.commits) == 1 else f"{len(self.commits)} commits"
        return f"older than its code by {times}, the last {self.commits[0]}"


def age_of(origin: Origin, root: Path = ROOT) -> Age:
    """What git knows of the code in the repository at ``root``."""
    if origin.revision is None:
        return Age(unknown="no revision")
    if origin.command is None or not (paths := paths_of(origin.command, root)):
        return Age(unknown="no command of this project")
    if origin.revision.endswith(DIRTY):
        return Age(unknown=f"revision {origin.revision}, and what was not committed then")
    made_at = origin.revision
    now = git(root, "rev-parse", "HEAD") or ""
    listed = git(root, "diff", "--name-only", "--no-renames", made_at, now, "--", *paths)
    if listed is None:
        return Age(unknown=f"revision {made_at} is not in {_this_repository(root)}")
    changed = listed.splitlines()
    before, after = _meanings(root, made_at, changed), _meanings(root, now, changed)
    older = [path for path in changed if before[path] != after[path]]
    if not older:
        return Age()
    log = git(root, "log", "--format=%h %s", f"{made_at}..{now}", "--", *older)
    if not log or git(root, "merge-base", "--is-ancestor", made_at, now) is None:
        return Age(
            unknown=f"revision {made_at} has another {older[0]}, and is none before HEAD in {_this_repository(root)}"
        )
    return Age(log.splitlines())


def _this_repository(root: Path) -> str:
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        return "this shallow clone: git fetch --unshallow"
    return "this repository"


def _meanings(root: Path, revision: str, paths: Sequence[str]) -> dict[str, int | None]:
    """By path, a hash of what a Python file does, without what is said of it, and of any other file's text. None where
    there was none."""
    known = _known(root, revision)
    asked = [path for path in paths if path not in known]
    command, objects = ("git", "cat-file", "--batch"), "".join(f"{revision}:{path}\n" for path in asked)
    said = subprocess.run(command, cwd=root, input=objects.encode(), capture_output=True, check=True).stdout
    for path in asked:
        head, _, said = said.partition(b"\n")
        if head.endswith(b" missing"):
            known[path] = None
            continue
        size = int(head.rpartition(b" ")[2])
        text, said = said[:size].decode(errors="replace"), said[size + 1 :]
        known[path] = hash(ast.dump(_WithoutWords().visit(ast.parse(text))) if path.endswith(".py") else text)
    return known


@cache
def _known(root: Path, revision: str) -> dict[str, int | None]:
    """What has been read of a revision."""
    return {}


class _WithoutWords(ast.NodeTransformer):
    """Leaves out docstrings, also those below constants and fields."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def module_of(command: str) -> str | None:
    """The benchmark that it runs; None for other commands."""
    match shlex.split(command):
        case ["python", "-m", module, *_] if module.split(".")[0] == "benchmarks":
            return module
    return None


def paths_of(command: str, root: Path = ROOT) -> list[str]:
    """Files and folders, from the repository's root; none where it runs nothing of the project. A paper's figures rest
    on its own file, not on those of the other papers."""
    module = module_of(command)
    if module is None:
        return list(PRODUCT) if "slackwater" in shlex.split(command) else []
    if module == FIGURES:
        module = f"{module}.papers.{shlex.split(command)[3]}"
    first = file_of(module, root)
    if first is None:
        return []
    seen, left = {first}, [first]
    while left:
        for file in imported(left.pop(), root):
            if file not in seen and file.relative_to(root).as_posix() not in SHOWING:
                seen.add(file)
                left.append(file)
    paths = {file.relative_to(root).as_posix() for file in seen}
    return sorted(paths.union(PRODUCT) if paths.intersection(STARTERS) else paths)


@cache
def imported(file: Path, root: Path) -> frozenset[Path]:
    """Modules of the project, also those that functions import."""
    return frozenset(filter(None, (file_of(name, root) for name in _imported_names(file))))


def _imported_names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
        yield from names


def file_of(module: str, root: Path) -> Path | None:
    """None for what is not of the project. Of a package: what ``python -m`` runs of it, else its face."""
    place = root.joinpath(*module.split("."))
    found = [place.with_suffix(".py"), place / "__main__.py", place / "__init__.py"]
    return next((each for each in found if each.is_file()), None)
