"""Which code a command's figures rest on, and which commits changed it since."""

import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.harness.origin import DIRTY, ROOT, Origin, git
from benchmarks.results.parts import parts_of
from benchmarks.results.reach import reached
from benchmarks.results.tree import Tree, tree_of

PRODUCT = ("services", "shared", "kernels", "loadgen")
FOLDERS = (*PRODUCT, "benchmarks")
STARTERS = ("benchmarks/harness/stack.py", "benchmarks/harness/local_stack.py")
"""Whoever imports these measures processes that run the whole product."""
SHOWN_BY = ("charts", "command", "kept", "origin", "page", "table")
SHOWING = tuple(f"benchmarks/harness/{name}.py" for name in SHOWN_BY)  # how figures are shown, not what they are
FIGURES = "benchmarks.figures"  # papers'

Meaning = tuple[str, int | str]  # of a part, its name and a hash of what it says


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
    now = git(root, "rev-parse", "HEAD") or ""
    if origin.command is None or not (new := meanings_below(origin.command, root, now)):
        return Age(unknown="no command of this project")
    if origin.revision.endswith(DIRTY):
        return Age(unknown=f"revision {origin.revision}, and what was not committed then")
    made_at = origin.revision
    old = meanings_below(origin.command, root, made_at)
    if old is None:
        return Age(unknown=f"revision {made_at} is not in {_this_repository(root)}")
    said = {each for parts in old.values() for each in parts}, {each for parts in new.values() for each in parts}
    other = said[0] ^ said[1]
    if not other:
        return Age()
    paths = sorted(path for parts in (old, new) for path, each in parts.items() if not other.isdisjoint(each))
    if git(root, "merge-base", "--is-ancestor", made_at, now) is None:
        return Age(
            unknown=f"revision {made_at} has another {paths[0]}, and is none before HEAD in {_this_repository(root)}"
        )
    return Age(_commits(root, f"{made_at}..{now}", dict.fromkeys(paths), {name for name, _ in other}))


def _this_repository(root: Path) -> str:
    if git(root, "rev-parse", "--is-shallow-repository") == "true":
        return "this shallow clone: git fetch --unshallow"
    return "this repository"


def _commits(root: Path, revisions: str, paths: Iterable[str], names: Container[str]) -> list[str]:
    """Hash and subject of those that changed parts of these names in these files; of all that changed the files, where
    it was another in between."""
    log = git(root, "log", "--format=%H %h %s", revisions, "--", *paths) or ""
    words = dict(line.split(" ", 1) for line in log.splitlines())
    changing = {each for each in words if any(p in paths and n in names for p, n in _changed_by(root, each))}
    return [each for commit, each in words.items() if not changing or commit in changing]


@cache
def _changed_by(root: Path, commit: str) -> frozenset[Meaning]:
    """Paths and names of the parts that a commit changed; one that says the same in another file is none of them."""
    before, after = (_said(root, revision) for revision in (f"{commit}^", commit))
    gone, new = before - after, after - before
    moved = {part for _, part in gone} & {part for _, part in new}
    return frozenset((path, part[0]) for path, part in gone | new if part not in moved)


def _said(root: Path, revision: str) -> frozenset[tuple[str, Meaning]]:
    tree = tree_of(root, revision, FOLDERS)
    return frozenset((path, each) for path in (tree.blobs if tree else ()) for each in _all_of(tree, path))


def module_of(command: str) -> str | None:
    """The benchmark that it runs; None for other commands."""
    match shlex.split(command):
        case ["python", "-m", module, *_] if module.split(".")[0] == "benchmarks":
            return module
    return None


def paths_of(command: str, root: Path = ROOT) -> list[str]:
    """Files of HEAD that it rests on, at least on a part of."""
    return sorted(meanings_below(command, root, git(root, "rev-parse", "HEAD") or "") or ())


@cache
def meanings_below(command: str, root: Path, revision: str) -> Mapping[str, frozenset[Meaning]] | None:
    """Of the parts that it rests on, by the paths of their files; none where it runs nothing of the project, None for a
    ``revision``, a commit, that is not there. A paper's figures rest on its own module, not on those of the others."""
    tree, module = tree_of(root, revision, FOLDERS), module_of(command)
    if tree is None:
        return None
    product = {path: _all_of(tree, path) for path in tree.blobs if path.split("/")[0] in PRODUCT}
    if module is None:
        return product if "slackwater" in shlex.split(command) else {}
    if module == FIGURES:
        module = f"{module}.papers.{shlex.split(command)[3]}"
    first = tree.run_module(module)
    parts = {} if first is None else reached(first, tree, SHOWING)
    own = {path: frozenset(each for each in _all_of(tree, path) if each[0] in names) for path, names in parts.items()}
    return own | product if any(each in parts for each in STARTERS) else own


def _all_of(tree: Tree, path: str) -> frozenset[Meaning]:
    """Of a file that is no module its content, by its path."""
    if not path.endswith(".py"):
        return frozenset({(path, tree.blobs[path])})
    return frozenset(parts_of(tree.text(path)).meanings.items())


def file_of(module: str, root: Path) -> Path | None:
    """None for what is not of the project. Of a package: what ``python -m`` runs of it, else its face."""
    place = root.joinpath(*module.split("."))
    found = [place.with_suffix(".py"), place / "__main__.py", place / "__init__.py"]
    return next((each for each in found if each.is_file()), None)
