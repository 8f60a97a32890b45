"""What the program itself calls the tensors of a call: the text of its arguments in the source line."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Mapping

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


def name_operands(pattern: ast.expr, file: str, line: int) -> dict[str, str]:
    """By the names of a pattern the text of what stands there in a source line; only what is certain is in it.

    A statement of several lines is read from its first line on. Where the function is called twice in it, nothing is.
    """
    statement = _read_statement(file, line)
    found: dict[str, str] = {}
    if statement is not None and isinstance(pattern, ast.Call):
        calls = [each for each in ast.walk(statement) if _name_of(each) == _function_of(pattern)]
        if len(calls) == 1:
            _bind(pattern, calls[0], found)
    return found


def fill_in(text: str, names: Mapping[str, str]) -> str:
    """A text in which <x> stands for what `names` calls x, or for x."""
    return re.sub(r"<(\w+)>", lambda match: names.get(match[1], match[1]), text)


def _read_statement(file: str, line: int) -> ast.stmt | None:
    """The statement that begins at a line; the head of one with a block."""
    text = ""
    for number in range(line, line + 8):
        text += linecache.getline(file, number)
        head = text.strip()
        for source in (head, f"{head}\n    pass" if head.endswith(":") else head):
            try:
                return ast.parse(source).body[0]
            except (SyntaxError, IndexError, ValueError):
                continue
    return None


def _name_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op))
    if isinstance(node, ast.Subscript):
        return "getitem"
    if isinstance(node, ast.Call):
        function = node.func
        return spell_alike(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    return None


def _function_of(pattern: ast.Call) -> str:
    assert isinstance(pattern.func, ast.Name)
    return pattern.func.id.removeprefix("maybe_")


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


def _bind(pattern: ast.Call, node: ast.AST, found: dict[str, str]) -> None:
    given = _arguments_of(node)
    for number, wanted in enumerate(pattern.args):
        if isinstance(wanted, ast.Starred) and isinstance(wanted.value, ast.Name):
            for place, each in enumerate(given[number:]):
                found[f"{wanted.value.id}{place}"] = _text_of(each)
            return
        if number >= len(given) or isinstance(given[number], ast.Starred):
            return
        if isinstance(wanted, ast.Name):
            found[wanted.id] = _text_of(given[number])
        elif isinstance(wanted, ast.Call) and _name_of(given[number]) == _function_of(wanted):
            _bind(wanted, given[number], found)


def _text_of(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Compare)) else text


def names_in(pattern: ast.expr) -> Iterator[str]:
    """The names of a pattern."""
    functions = {id(each.func) for each in ast.walk(pattern) if isinstance(each, ast.Call)}
    return (each.id for each in ast.walk(pattern) if isinstance(each, ast.Name) and id(each) not in functions)
