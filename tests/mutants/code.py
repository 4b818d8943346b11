"""The code of functions that a module has made already, exchanged where they stand: nothing is imported anew."""

import ast
import builtins
import contextlib
import gc
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType

Line = tuple[str, int]  # path, where a statement begins
_Key = tuple[str, int]  # qualified name, first line
_HOOK = "__mutants_ran__"


def functions_of(paths: Collection[str]) -> dict[str, list[FunctionType]]:
    """By path, those that the modules have made by now. To look at all objects takes longer than most tests do, and in
    a forked process they are copied by it."""
    by_filename: dict[str, list[FunctionType]] = {str(Path(path).resolve()): [] for path in paths}
    gc.unfreeze()  # what is frozen is not among the objects
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in by_filename:
            by_filename[each.__code__.co_filename].append(each)
    gc.freeze()
    return {path: by_filename[str(Path(path).resolve())] for path in paths}


@contextlib.contextmanager
def exchanged(path: str, tree: ast.Module, functions: Iterable[FunctionType]) -> Iterator[None]:
    """The ``functions`` of the module at ``path`` are those of ``tree`` until the end. Raises ``ValueError`` where one
    of them closes over other variables."""
    made = list(_codes(compile(tree, str(Path(path).resolve()), "exec", dont_inherit=True)))
    times = Counter(key for key, _ in made)
    codes = {key: code for key, code in made if times[key] == 1}  # lambdas of one line cannot be told from each other
    before = [(each, each.__code__) for each in functions if _key(each.__code__) in codes]
    try:
        for function, code in before:
            function.__code__ = codes[_key(code)]
        yield
    finally:
        for function, code in before:
            function.__code__ = code


@contextlib.contextmanager
def statements_run(functions: Mapping[str, Iterable[FunctionType]]) -> Iterator[set[Line]]:
    """Of the modules at these paths, with their ``functions``, those that run until the end: the set is filled as they
    do."""
    lines: set[Line] = set()
    setattr(builtins, _HOOK, lines.add)
    with contextlib.ExitStack() as stack:
        for path, own in functions.items():
            stack.enter_context(exchanged(path, reporting(path, _HOOK), own))
        yield lines


def reporting(path: str, hook: str) -> ast.Module:
    """The module at ``path``, whose functions call the builtin ``hook`` with the path and the line before each
    statement."""
    tree = ast.parse(Path(path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            _report_statements(node, path, hook)
    return ast.fix_missing_locations(tree)


def _report_statements(node: ast.AST, path: str, hook: str) -> None:
    for field in ("body", "orelse", "finalbody"):
        statements = getattr(node, field, None)
        if not isinstance(statements, list) or any(_is_report(each, hook) for each in statements):
            continue
        reported: list[ast.stmt] = []
        for each in statements:
            arguments: list[ast.expr] = [ast.Tuple([ast.Constant(path), ast.Constant(each.lineno)], ast.Load())]
            call = ast.Expr(ast.Call(ast.Name(hook, ast.Load()), arguments, []))
            reported += [ast.copy_location(call, each), each]
        for each in statements:
            if not isinstance(each, ast.ClassDef):
                _report_statements(each, path, hook)
        setattr(node, field, reported)
    for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        _report_statements(each, path, hook)


def _is_report(statement: ast.stmt, hook: str) -> bool:
    match statement:
        case ast.Expr(ast.Call(ast.Name(name))):
            return name == hook
    return False


def _codes(code: CodeType) -> Iterator[tuple[_Key, CodeType]]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield _key(each), each
            yield from _codes(each)


def _key(code: CodeType) -> _Key:
    return code.co_qualname, code.co_firstlineno
