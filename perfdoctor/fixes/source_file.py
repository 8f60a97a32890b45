"""SourceFile: a Python file with its syntax tree, what its names mean, and splices that leave all other bytes alone.

Python's own parser and not one that keeps comments: an edit replaces bytes between two positions of the tree, so that
formatting stays whatever it is, and a generated file of 50,000 lines is parsed in half a second (libcst took 88 s to
parse it and to resolve its names).
"""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import tokenize
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from perfdoctor.errors import EditRefusedError
from perfdoctor.frozen_dataclass import frozen_dataclass

# Sources by hand are smaller; what is larger is data or generated, and nobody edits it by hand.
MAX_SOURCE_BYTES = 4_000_000

Node = TypeVar("Node", bound=ast.AST)


@frozen_dataclass
class Splice:
    """Replaces the bytes from `start` to `end` of the text in UTF-8 by `text`."""

    start: int
    end: int
    text: str


class SourceFile:
    """A Python file of the user's project.

    Attributes:
        path: Where it is.
        name: Its path from the project's folder, with slashes.
        data: Its bytes.
        encoding: As its first lines say it.
        tree: Its syntax tree.
    """

    def __init__(self, path: Path, name: str, data: bytes, encoding: str, tree: ast.Module) -> None:
        self.path, self.name, self.data, self.encoding, self.tree = path, name, data, encoding, tree
        self._utf8 = data.decode(encoding).encode()

    @property
    def newline(self) -> str:
        """The line end of its first line."""
        return "\r\n" if self._utf8.partition(b"\n")[0].endswith(b"\r") else "\n"

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends, as offsets of bytes in UTF-8."""
        starts = self._line_starts
        assert isinstance(node, ast.expr | ast.stmt | ast.keyword | ast.arg)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.AST) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self._utf8[start:end].decode()

    def line_start(self, line: int) -> int:
        """Where a line begins; one behind the last is the end of the text."""
        starts = self._line_starts
        return starts[line - 1] if line <= len(starts) else len(self._utf8)

    def line_of(self, at: int) -> int:
        """The line in which a position lies."""
        return bisect.bisect_right(self._line_starts, at)

    def part_of_line(self, line: int) -> str:
        """The text of a line, its end among it."""
        return self.part(self.line_start(line), self.line_start(line + 1))

    def name_of(self, module: str) -> str:
        """The name by which the file knows a module; "" where it has not imported it whole."""
        return next((name for name, meaning in self._imports.items() if meaning == module), "")

    def indentation(self, line: int) -> str:
        """The blanks and tabs with which a line begins."""
        text = self.part_of_line(line)
        return text[: len(text) - len(text.lstrip(" \t"))]

    def meaning(self, node: ast.AST) -> str:
        """What a dotted name means by the imports of the file: "torch.optim.AdamW"; "" where it is not imported."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        base = self._imports.get(node.id, "")
        return ".".join([base, *reversed(parts)]) if base else ""

    def calls(self, is_wanted: Callable[[str], bool]) -> list[ast.Call]:
        """The calls of what has a wanted meaning, in the order of their lines."""
        return [each for each in self.nodes(ast.Call) if is_wanted(self.meaning(each.func))]

    def nodes(self, *kinds: type[Node]) -> list[Node]:
        """All nodes of some kinds, in the order of their lines."""
        found = [node for node in self._parents if isinstance(node, kinds)]
        return sorted(found, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))

    def nodes_at(self, line: int, *kinds: type[Node]) -> list[Node]:
        """Those of these nodes that a line is part of, in the order of their lines."""
        return [each for each in self.nodes(*kinds) if each.lineno <= line <= each.end_lineno]  # type: ignore[attr-defined]

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node stands in, the innermost first."""
        parents = self._parents
        while (parent := parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is part of; itself where it is one."""
        return next(each for each in (node, *self.parents(node)) if isinstance(each, ast.stmt))

    def scope(self, node: ast.AST) -> ast.AST:
        """The function or the module in which a node runs."""
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
        return next(each for each in self.parents(node) if isinstance(each, kinds))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements of the block in which one stands."""
        parent = next(self.parents(statement))
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        return next(block for block in blocks if isinstance(block, list) and statement in block)

    def ends_line(self, at: int) -> bool:
        """Whether a line ends right before a position."""
        return self._utf8[at - 1 : at] == b"\n"

    def part(self, start: int, end: int, splices: tuple[Splice, ...] = ()) -> str:
        """The text between two positions, with some splices in it.

        Raises:
            EditRefusedError: They overlap.
        """
        pieces, at = [], start
        for each in sorted(dict.fromkeys(splices), key=lambda each: (each.start, each.end)):
            if each.start < at:
                raise EditRefusedError("it changes the same code as another edit")
            pieces += [self._utf8[at : each.start], each.text.encode()]
            at = each.end
        return b"".join([*pieces, self._utf8[at:end]]).decode()

    def splice(self, splices: tuple[Splice, ...]) -> bytes:
        """The bytes of the file with some splices in it.

        Raises:
            EditRefusedError: They overlap, or the result is no Python.
        """
        text = self.part(0, len(self._utf8), splices)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what the program's own source warns of is not ours
                ast.parse(text)
            return text.encode(self.encoding)
        except (SyntaxError, ValueError) as error:
            raise EditRefusedError(f"the edited file would not be Python ({type(error).__name__})") from None

    @cached_property
    def _line_starts(self) -> list[int]:
        lines = self._utf8.split(b"\n")
        return [0, *itertools.accumulate(len(line) + 1 for line in lines[:-1])]

    @cached_property
    def _parents(self) -> dict[ast.AST, ast.AST]:
        return {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}

    @cached_property
    def _imports(self) -> dict[str, str]:
        """What imported names mean; a name with two meanings, or one that is assigned as well, has none."""
        found: dict[str, set[str]] = {}
        for node, parent in self._parents.items():
            if isinstance(node, ast.Import):
                for each in node.names:
                    name = each.asname or each.name.partition(".")[0]
                    found.setdefault(name, set()).add(each.name if each.asname else name)
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    origin = "." * node.level + (node.module or "")
                    found.setdefault(each.asname or each.name, set()).add(f"{origin}.{each.name}")
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, set()).add("")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and parent is self.tree:
                found.setdefault(node.name, set()).add("")
        return {name: meanings.pop() for name, meanings in found.items() if len(meanings) == 1}


def read_source(path: Path, name: str) -> SourceFile:
    """Read a Python file.

    Raises:
        EditRefusedError: It is too large, cannot be read, or is no Python of this release.
    """
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise EditRefusedError(
                f"{name} is larger than {MAX_SOURCE_BYTES // 1_000_000} MB: it is generated, not written"
            )
        data = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
        if "\r" in text.replace("\r\n", ""):
            raise EditRefusedError(f"{name} has line ends of its own")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except OSError as error:
        raise EditRefusedError(f"{name} cannot be read ({error.strerror})") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise EditRefusedError(f"{name} cannot be parsed ({type(error).__name__})") from None
    return SourceFile(path, name, data, encoding, tree)


def method_of(node: ast.AST) -> str:
    """The method that an expression calls: "backward" of `loss.backward()`; "" for other expressions."""
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
