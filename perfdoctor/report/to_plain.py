"""Converts values of the report to plain data for JSON; no other file does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """The value as dictionaries, lists, strings and numbers, in the form of the report schema."""
    members = members_of(type(value))
    if members is not None:
        return {name: to_plain(getattr(value, name)) for name in members}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value


def members_of(cls: type) -> Iterable[str] | None:
    """The names of what a class writes, in order: its fields; None for a class that has none.

    Where other fields are left out, or properties belong to it, `SCHEMA` lists all that do.
    """
    return getattr(cls, "SCHEMA", None) or getattr(cls, "__dataclass_fields__", None)
