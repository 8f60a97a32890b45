"""forms.toml as values: which calls a form replaces, and what the process that measures needs of it."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, NamedTuple

_KEYS = frozenset(
    [
        "of",
        "group",
        "devices",
        "types",
        "when",
        "each",
        "before",
        "form",
        "compare",
        "unread",
        "results",
        "says",
        "write",
    ]
)


class Form(NamedTuple):
    """A row of forms.toml.

    Attributes:
        id: Its name.
        patterns: The calls that it replaces, as expressions.
        group: "repeat", "chain" or "".
        devices: Where it is measured; all where it names none.
        types: Of these types an input has to be; of any where it names none.
        unread: Items of the last result that nobody may read.
        says: What it is, after "takes 3 ms with".
        results: "equal", "other type" or "other numbers".
        plain: The row, for the process that measures.
    """

    id: str
    patterns: tuple[ast.expr, ...]
    group: str
    devices: frozenset[str]
    types: frozenset[str]
    unread: tuple[int, ...]
    says: str
    results: str
    plain: Mapping[str, Any]


@functools.cache
def _read_table() -> Mapping[str, Any]:
    text = resources.files("perfdoctor.forms").joinpath("forms.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def functions_named(name: str) -> frozenset[str]:
    """The functions that a pattern means by a name: those of a set, else the one that is called so."""
    return frozenset(_read_table()["sets"].get(name, (name,)))


@functools.cache
def read_forms() -> tuple[Form, ...]:
    """All forms.

    Raises:
        ValueError: A row has an unknown key, or lacks one.
    """
    return tuple(_parse_form(name, row) for name, row in _read_table().items() if name != "sets")


def _parse_form(name: str, row: dict[str, Any]) -> Form:
    unknown, missing = set(row) - _KEYS, {"of", "form", "says", "write"} - set(row)
    if unknown or missing:
        raise ValueError(f"forms.toml, {name}: unknown {sorted(unknown)}, missing {sorted(missing)}")
    texts = [row["of"]] if isinstance(row["of"], str) else row["of"]
    patterns = tuple(ast.parse(text, mode="eval").body for text in texts)
    return Form(
        id=name,
        patterns=patterns,
        group=row.get("group", ""),
        devices=frozenset(row.get("devices", ())),
        types=frozenset(row.get("types", ())),
        unread=tuple(row.get("unread", ())),
        says=row["says"],
        results=row.get("results", "equal"),
        plain={"id": name, **row},
    )


def function_of(pattern: ast.expr) -> str:
    """The function that a pattern names, with "maybe_" where it may be missing."""
    assert isinstance(pattern, ast.Call)
    assert isinstance(pattern.func, ast.Name)
    return pattern.func.id


def names_in(pattern: ast.expr) -> Iterator[str]:
    """The names that a pattern binds."""
    functions = {id(each.func) for each in ast.walk(pattern) if isinstance(each, ast.Call)}
    return (each.id for each in ast.walk(pattern) if isinstance(each, ast.Name) and id(each) not in functions)
