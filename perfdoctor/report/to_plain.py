"""Values of the report as plain data for JSON: the one place that knows how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_plain(value: Any) -> Any:
    """A value as dictionaries, lists, texts and numbers, as the report schema has it.

    What a class shows is listed in its `SCHEMA`, in order: names of fields and properties. Other members are not part
    of the schema.
    """
    members = getattr(type(value), "SCHEMA", None)
    if members is not None:
        return {name: to_plain(getattr(value, name)) for name in members}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return value
