"""Files that the documentation names are there, and hold what is said to be in them."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = "services|shared|kernels|loadgen|deploy|benchmarks|tests|docs"
NAMED_FILE = re.compile(rf"`(?P<path>(?:{FOLDERS})/[\w./-]*)`(?P<names>:\s+`[\w.]+`(?:,\s+`[\w.]+`)*)?")
QUOTED = re.compile(r"`([\w.]+)`")


def named_files(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each with what is named beside it."""
    for match in NAMED_FILE.finditer(page.read_text()):
        yield match["path"], QUOTED.findall(match["names"] or "")


@cache
def defined_in(path: str) -> frozenset[str]:
    """Names at the top of a module, and those in its classes after a dot."""
    return frozenset(_names(ast.parse((ROOT / path).read_text()).body))


def _names(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
        yield from (prefix + target.id for target in _targets(node) if isinstance(target, ast.Name))


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_what_a_page_names_is_there(page: Path) -> None:
    for path, names in named_files(page):
        assert (ROOT / path).exists(), path
        for name in names:
            assert name in defined_in(path), f"{path}: {name}"


def test_the_map_names_what_each_file_holds() -> None:
    rows = list(named_files(ROOT / "docs" / "where_is_what.md"))
    assert len(rows) > 100
    assert sum(not names for _, names in rows) <= 10
