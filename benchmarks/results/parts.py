"""What of a module is used where: its functions, classes and constants, what each of them names, and what runs when the
module is loaded. Comments and docstrings are no part of it."""

from __future__ import annotations

import ast
import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

LOADING = ""  # the part that runs when a module is loaded
RUNNING = "__main__"  # and the one that runs where it is what ``python -m`` names
ALL = "*"  # every part of a module
TYPES_ONLY = "TYPE_CHECKING"
CHANGES_NOTHING = frozenset({
    "abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod", "contextmanager", "dataclass",
    "final", "jit", "lru_cache", "njit", "overload", "property", "runtime_checkable", "setter", "staticmethod",
    "total_ordering", "unique", "wraps",
})  # fmt: skip
"""Decorators that tell nobody of what they decorate. By any other it may be found without being named."""

Definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Name(NamedTuple):
    """``module``: as it is imported, empty for the one that names it; ``part`` of it, or a module in it; ``attribute``
    of that, where one is named."""

    module: str
    part: str
    attribute: str = ""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a module. ``meanings``: a hash of what each says, by name; ``needs``: what it names; ``imports``: what else
    has a name here; ``loads``: modules that are loaded with this one."""

    meanings: Mapping[str, int]
    needs: Mapping[str, frozenset[Name]]
    imports: Mapping[str, Name]
    loads: frozenset[str]


@cache
def parts_of(text: str) -> Parts:
    """Of a module. One that this Python cannot read is one part."""
    try:
        tree = _WithoutWords().visit(ast.parse(text))
    except SyntaxError:
        return Parts({LOADING: hash(text)}, {LOADING: frozenset()}, {}, frozenset())
    named: defaultdict[str, list[ast.stmt]] = defaultdict(list)
    imports: dict[str, Name] = {}
    loads = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_guard(node, TYPES_ONLY):
            imports |= dict(_imported(node))
        elif _is_guard(node, RUNNING):
            named[RUNNING].append(node)
        else:
            for name in _bound(node) or [LOADING]:
                named[name].append(node)
            if isinstance(node, Definitions) and any(map(_may_tell, node.decorator_list)):
                named[LOADING].append(node)
        if not isinstance(node, Definitions) and not _is_guard(node, TYPES_ONLY):
            loads |= {module for _, (module, _, _) in _imported(node)}
            loads |= {f"{module}.{part}" for _, (module, part, _) in _imported(node)}
    meanings = {name: hash("\n".join(map(ast.dump, nodes))) for name, nodes in named.items()}
    needs = {
        name: frozenset(each for node in nodes for each in _needed(node, imports)) for name, nodes in named.items()
    }
    return Parts(meanings, needs, imports, frozenset(loads))


class _WithoutWords(ast.NodeTransformer):
    """Leaves out docstrings, also those below constants and fields."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else node


def _is_guard(node: ast.stmt, name: str) -> bool:
    """``if TYPE_CHECKING`` and ``if __name__ == "__main__"``."""
    return isinstance(node, ast.If) and f"'{name}'" in ast.dump(node.test)


def _imported(node: ast.AST) -> Iterator[tuple[str, Name]]:
    """By the names that they have here."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            for alias in each.names:
                yield alias.asname or alias.name.partition(".")[0], Name(alias.name, ALL)
        elif isinstance(each, ast.ImportFrom):
            for alias in each.names:
                yield alias.asname or alias.name, Name(str(each.module), alias.name)


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement of a module gives a meaning to; none where it does something else."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign(targets):
            return _names_only(targets)
        case ast.AnnAssign(target) | ast.AugAssign(target):
            return _names_only([target])
        case ast.If() | ast.Try() | ast.With():
            inner = [each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node]
            return [name for each in inner for name in _bound(each)]
    return []


def _names_only(targets: Sequence[ast.expr]) -> list[str]:
    """None where one of them is part of something."""
    inner = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.expr)]
    names = [each.id for each in inner if isinstance(each, ast.Name)]
    is_plain = all(isinstance(each, ast.Name | ast.Tuple | ast.List | ast.Starred) for each in inner)
    return names if is_plain else []


def _may_tell(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(called, "attr", getattr(called, "id", None)) not in CHANGES_NOTHING


def _needed(node: ast.stmt, imports: Mapping[str, Name]) -> Iterator[Name]:
    """What it names, and what it imports itself."""
    for name, attribute in _names(node):
        yield imports.get(name, Name("", name))._replace(attribute=attribute)
    for _, target in _imported(node):
        yield target


def _names(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Each name, with the attribute of it that is meant, if one is. What annotates a function or a dataclass says what
    comes, which somebody else has made, and named; not so where a decorator may look at it."""
    match node:
        case ast.Name(name):
            yield name, ""
        case ast.Attribute(ast.Name(name), attribute):
            yield name, attribute
        case ast.FunctionDef() | ast.AsyncFunctionDef() if not any(map(_may_tell, node.decorator_list)):
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            for each in [*node.decorator_list, *defaults, *node.body]:
                yield from _names(each)
        case ast.ClassDef() if "'dataclass'" in "".join(map(ast.dump, node.decorator_list)):
            fields = [each.value or ast.Pass() if isinstance(each, ast.AnnAssign) else each for each in node.body]
            for each in [*node.decorator_list, *node.bases, *fields]:
                yield from _names(each)
        case ast.AnnAssign():
            yield from _names(node.annotation)
            yield from _quoted_names(node.annotation)
            yield from _names(node.target)
            yield from _names(node.value or ast.Pass())
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _names(child)


def _quoted_names(annotation: ast.expr) -> Iterator[tuple[str, str]]:
    for each in ast.walk(annotation):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            with contextlib.suppress(SyntaxError):
                yield from _names(ast.parse(each.value, mode="eval"))
