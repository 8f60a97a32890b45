"""What the program itself calls the tensors of a call: the text of its arguments in the source line."""

from __future__ import annotations

import ast
import copy
import itertools
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from perfdoctor.forms.read_forms import function_of, functions_named
from perfdoctor.forms.recorded_calls import spell_alike

_OPERATORS: Mapping[type, str] = {
    ast.MatMult: "matmul",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Pow: "pow",
}
# Modules whose functions get their first tensor as an argument: torch.softmax(x), F.softmax(x).
_MODULES = frozenset(("torch", "F", "functional", "nn", "linalg", "fft", "special"))


class Written(NamedTuple):
    """How a program writes some calls.

    Attributes:
        names: By the names of a pattern the text of what stands there; only what is certain is in it.
        rewrite: The statement of the last call with another expression in its place; None where it is no plain one.
    """

    names: Mapping[str, str]
    rewrite: Callable[[str], str] | None


def read_written(pattern: ast.expr, places: Sequence[tuple[str, int]]) -> Written:
    """How the calls of a pattern are written, of which the last one is at the last of some lines.

    Where a function is called twice at the lines, which of them is meant is not certain.
    """
    statements = [found for found in itertools.starmap(_read_statement, dict.fromkeys(places)) if found is not None]
    names: dict[str, str] = {}
    found = _find_call(pattern, statements[-1:])
    if found is None or not isinstance(pattern, ast.Call):
        return Written(names, None)
    _bind(pattern, found, names, statements)
    statement = statements[-1]
    is_plain = isinstance(statement, (ast.Assign, ast.Return, ast.Expr, ast.AnnAssign, ast.AugAssign))

    def rewrite(expression: str) -> str:
        changed = copy.deepcopy(statement)
        [old] = [each for each in ast.walk(changed) if ast.dump(each) == ast.dump(found)][:1]
        return ast.unparse(_Replace(old, ast.parse(expression, mode="eval").body).visit(changed))

    return Written(names, rewrite if is_plain else None)


class _Replace(ast.NodeTransformer):
    """Replaces one node."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        """The node, or the new one in its place."""
        return self._new if node is self._old else self.generic_visit(node)


def _find_call(pattern: ast.expr, statements: Sequence[ast.stmt]) -> ast.AST | None:
    """The only call of a pattern's function in some statements."""
    wanted = _function_of(pattern)
    calls = [each for statement in statements for each in ast.walk(statement) if _name_of(each) in wanted]
    return calls[0] if len(calls) == 1 else None


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """A text in which <x> stands for what `names` calls x, or for x."""
    return re.sub(r"<(\w+)>", lambda match: names.get(match[1], match[1]), text)


def _read_statement(file: str, line: int) -> ast.stmt | None:
    """The innermost statement at a line; of one with a block its head."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    around = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and each.lineno <= line <= (each.end_lineno or each.lineno)
    ]
    if not around:
        return None
    found = max(around, key=lambda each: each.lineno)
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(found, block):
            setattr(found, block, [])
    return found


def _name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op))
    if isinstance(node, ast.Subscript):
        return "getitem"
    if isinstance(node, ast.Call):
        function = node.func
        return spell_alike(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    return None


def _function_of(pattern: ast.expr) -> frozenset[str]:
    return functions_named(function_of(pattern).removeprefix("maybe_"))


def _arguments_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    assert isinstance(node, ast.Call)
    of_object = [node.func.value] if isinstance(node.func, ast.Attribute) and not _is_module(node.func.value) else []
    return [*of_object, *node.args]


def _is_module(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id in _MODULES) or (
        isinstance(node, ast.Attribute) and node.attr in _MODULES
    )


def _bind(pattern: ast.Call, node: ast.AST, found: dict[str, str], statements: Sequence[ast.stmt]) -> None:
    given = _arguments_of(node)
    if _name_of(node) in ("mul", "add") and pattern.args and isinstance(pattern.args[0], ast.Call):
        given.sort(key=lambda each: _name_of(each) not in _function_of(pattern.args[0]))
    for number, wanted in enumerate(pattern.args):
        if isinstance(wanted, ast.Starred) and isinstance(wanted.value, ast.Name):
            for place, each in enumerate(given[number:]):
                found[f"{wanted.value.id}{place}"] = _text_of(each)
            return
        if number >= len(given) or isinstance(given[number], ast.Starred):
            return
        wanted = wanted.value if isinstance(wanted, ast.Subscript) else wanted
        if isinstance(wanted, ast.Name):
            found[wanted.id] = _text_of(given[number])
        elif isinstance(wanted, ast.Call):
            # Written on the spot, or in a statement before.
            here = given[number] if _name_of(given[number]) in _function_of(wanted) else None
            inner = here or (_find_call(wanted, statements) if isinstance(given[number], ast.Name) else None)
            if inner is not None:
                _bind(wanted, inner, found, statements)


def _text_of(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Compare)) else text
