"""Converts values of the report to plain data for JSON; no other file does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """The value as dictionaries, lists, strings and numbers, in the form of the report schema.

    A class lists the fields and properties that belong to the schema in `SCHEMA`, in order; its other members are left
    out.
    """
    members = getattr(type(value), "SCHEMA", None)
    if members is not None:
        return {name: to_plain(getattr(value, name)) for name in members}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value
