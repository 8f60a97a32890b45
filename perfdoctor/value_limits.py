"""What values may be beyond their types; `docs/make_schemas.py` writes each into the JSON Schema of the class.

A limit is a keyword of JSON Schema with its value: `Annotated[tuple[str, ...], ("minItems", 1)]`. Integers are from 0
on where none is said.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

MAX_INT64 = (1 << 63) - 1

Positive: TypeAlias = Annotated[int, ("minimum", 1)]
Signed: TypeAlias = Annotated[int, ("minimum", -MAX_INT64)]
Amount: TypeAlias = Annotated[float, ("minimum", 0)]
Share: TypeAlias = Annotated[Amount, ("maximum", 1)]
