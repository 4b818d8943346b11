"""Small changes of a module: one operator, number, argument, condition or statement of a function's body at a time."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNCHANGED = (ast.Assert, ast.Raise, ast.JoinedStr)  # what is said of a mistake is no behaviour that decides
_Place = tuple[ast.AST, str, int | None]  # of a node in its parent: the field, and where that is a list the index


@dataclass(frozen=True, slots=True)
class Mutant:
    """``number``: of the module's; ``line``: where the statement begins that it changes."""

    path: str
    number: int
    function: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function}: {self.before} → {self.after}"


def mutants_of(path: str) -> list[Mutant]:
    """All of the module at this path."""
    changes = enumerate(_changes(ast.parse(Path(path).read_text())))
    return [
        Mutant(path, number, change.function, change.line, _shown(change.node), _shown(change.replacement))
        for number, change in changes
    ]


def mutated(mutant: Mutant) -> ast.Module:
    """The module with that change."""
    tree = ast.parse(Path(mutant.path).read_text())
    change = next(each for number, each in enumerate(_changes(tree)) if number == mutant.number)
    parent, field, index = change.place
    ast.copy_location(change.replacement, change.node)
    if index is None:
        setattr(parent, field, change.replacement)
    else:
        getattr(parent, field)[index] = change.replacement
    return ast.fix_missing_locations(tree)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node).strip().splitlines()[0]


@dataclass(frozen=True, slots=True)
class _Change:
    function: str
    line: int
    node: ast.AST
    replacement: ast.AST
    place: _Place


def _changes(tree: ast.Module) -> Iterator[_Change]:
    return _below(tree, "", None)


def _below(parent: ast.AST, scope: str, line: int | None) -> Iterator[_Change]:
    """``line``: of the statement around, in a function's body; None outside."""
    for field, value in ast.iter_fields(parent):
        is_function = isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef)
        if (is_function and field != "body") or field == "annotation":
            continue
        nodes = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, node in nodes:
            if not isinstance(node, ast.AST) or isinstance(node, _UNCHANGED):
                continue
            at = node.lineno if isinstance(node, ast.stmt) and (is_function or line is not None) else line
            if at is not None:
                for replacement in _replacements(node):
                    yield _Change(scope, at, node, replacement, (parent, field, index))
            is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from _below(node, f"{scope}.{node.name}".lstrip(".") if is_scope else scope, at)


def _replacements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                for other in _COMPARED[type(op)]:
                    yield ast.Compare(left, [*ops[:at], other(), *ops[at + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for at in range(len(values)):
                rest = [*values[:at], *values[at + 1 :]]
                yield ast.BoolOp(op, rest) if len(rest) > 1 else rest[0]
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
            yield left
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call():
            yield from _other_calls(node)
        case ast.If(test, body, orelse) if _is_plain(test):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test, body, orelse) if _is_plain(test):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.comprehension(target, iterable, [_, *_], is_async):
            yield ast.comprehension(target, iterable, [], is_async)
        case ast.stmt():
            yield from _other_statements(node)


def _other_calls(call: ast.Call) -> Iterator[ast.Call]:
    function, args, keywords = call.func, call.args, call.keywords
    if isinstance(function, ast.Name) and function.id in _CALLED:
        yield ast.Call(ast.Name(_CALLED[function.id], ast.Load()), args, keywords)
    for at, keyword in enumerate(keywords):
        if keyword.arg is not None:
            yield ast.Call(function, args, [*keywords[:at], *keywords[at + 1 :]])
    if args and not keywords and not isinstance(args[-1], ast.Starred | ast.GeneratorExp):
        yield ast.Call(function, args[:-1], [])


def _other_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    match statement:
        case ast.Expr(ast.Call()) | ast.Delete():
            yield ast.Pass()
        case ast.Assign([ast.Attribute() | ast.Subscript()], _):
            yield ast.Pass()
        case ast.AugAssign(target, op, value):
            yield ast.Pass()
            if type(op) in _COMPUTED:
                yield ast.AugAssign(target, _COMPUTED[type(op)](), value)
        case ast.Continue():
            yield ast.Break()
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()


def _is_plain(test: ast.expr) -> bool:
    """What no other change turns around."""
    return isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Subscript)
