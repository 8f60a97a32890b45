"""Lines that the profiler's stacks do not show: calls of what is neither Python nor a built-in function.

Types, ufuncs of numpy and functions compiled by Cython are called without an event. What runs between two calls that
were recorded is at a line between theirs, and where the text of the function has one line only that can take long,
it is that line::

    50  def sample(self, n):                           # 6 ms until the first call that was recorded, in line 53
    51      at = np.random.choice(self.size, n)        <- the only line before it that calls something
    52      fields = self.obs[at], self.act[at]
    53      return [torch.from_numpy(f) for f in fields]
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS = (ast.For, ast.While, ast.comprehension, ast.AsyncFor)
_WORKS = (ast.BinOp, ast.Subscript, ast.AugAssign, ast.Compare)


@functools.lru_cache(maxsize=4096)  # a loop asks the same each time round, and an answer walks through the function
def find_silent_line(
    file: str, function: str, first_line: int, after: tuple[int, str] | None, before: int | None
) -> int | None:
    """The line between those of two calls that takes the time between them; None where several may, or a loop does.

    A call before that the text of its line does not name was made by what that line calls, which goes on.

    Args:
        file: The file of the function.
        function: Its name.
        first_line: The line where its definition begins, a decorator's included.
        after: The line of the call before, and what it called; None where the function begins.
        before: The line of the call after; None where it ends.
    """
    node = _read_functions(file).get((function, first_line))
    if node is None:
        return None
    begin = node.body[0].lineno if after is None else after[0] + 1
    if after is not None:
        named = [_name_of(each) for each in _walk(node) if isinstance(each, ast.Call) and each.lineno == after[0]]
        begin -= bool(named) and not any(name in after[1] for name in named)
    end = (node.end_lineno or begin) + 1 if before is None else before
    inside = [each for each in _walk(node) if begin <= getattr(each, "lineno", 0) < end]
    if any(isinstance(each, _LOOPS) for each in inside):
        return None
    for kinds in (ast.Call, _WORKS):
        lines = {each.lineno for each in inside if isinstance(each, kinds)}
        if lines:
            return lines.pop() if len(lines) == 1 else None
    return None


@functools.lru_cache(maxsize=64)
def _read_functions(file: str) -> dict[tuple[str, int], ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of a file by name and first line; none where it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)]
    return {(each.name, min([each.lineno, *(d.lineno for d in each.decorator_list)])): each for each in functions}


def _name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """What a function itself runs, without the functions that are made in it."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            yield from _walk(child)
