"""CapturedPart: the base of all that is read from facts.json, and the one parser that makes such values of JSON.

Other versions of perfdoctor write such files, programs are killed while one is written, and a file may hold anything:
what is missing, or of another type than expected, is not known.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

_T = TypeVar("_T")

# What is written where the reader's type does not say it; `docs/make_schemas.py` makes the JSON Schema of both.
Written: TypeAlias = Annotated[_T | None, "written"]
"""Never null in a file; None to the reader where a file lacks it."""
OrNull: TypeAlias = Annotated[_T, "or null"]
"""Null in a file where it is not known or does not apply; the reader gets the default."""
Later: TypeAlias = Annotated[_T, "later"]
"""Missing in files of some versions."""
Flat: TypeAlias = Annotated[_T, "flat"]
"""A part whose members stand in the file beside the others, with its name before theirs: base_step_ns."""

NOTHING: Mapping[Any, Any] = types.MappingProxyType({})

# Numbers of a file become int64, also as sums and times the steps of a window: 417 days, or 36 PB that were allocated.
_END_OF_COUNTS = 1 << 55

_Parser: TypeAlias = Callable[[Any], Any]


@dataclass_transform(kw_only_default=True, frozen_default=True)
class CapturedPart:
    """A part of facts.json as a frozen dataclass: true where anything of it is known.

    Times are ns, sizes bytes; None is not known. A name of a file that is a word of Python has an underscore behind it:
    `class_`. Its defaults stand in the class, and what a file says in the value: `@frozen_dataclass` would take 18 ms
    for these 47 classes, most of which an analysis never needs, this takes 0.5 ms.
    """

    def __init__(self, **values: Any) -> None:
        unknown = sorted(name for name in values if not hasattr(type(self), name))
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {unknown[0]!r}")
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete field {name!r}")

    def __bool__(self) -> bool:
        return bool(vars(self))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), frozenset(vars(self))))

    def __repr__(self) -> str:
        known = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({known})"

    @classmethod
    def parse(cls, plain: Any) -> Self:
        """The part as a file has it; nothing is known of what is no JSON object."""
        part = cls()
        if isinstance(plain, dict):
            values = ((name, parse(plain)) for name, parse in _parsers_of(cls).items())
            vars(part).update((name, value) for name, value in values if value is not None)
        return part


class CapturedLine(CapturedPart):
    """A line of the program and the function that it is in."""

    file: Written[str] = None
    line: Written[int] = None
    function: Written[str] = None


_PARSERS: dict[type[CapturedPart], Mapping[str, _Parser]] = {}
"""By class its fields, with functions from the JSON object to their values; made when a file first has such a part."""


def _parsers_of(cls: type[CapturedPart]) -> Mapping[str, _Parser]:
    found = _PARSERS.get(cls)
    if found is None:
        hints = get_type_hints(cls, include_extras=True)
        found = _PARSERS[cls] = {name: _field_parser(name, hint) for name, hint in hints.items()}
    return found


def _field_parser(name: str, hint: Any) -> _Parser:
    if "flat" in getattr(hint, "__metadata__", ()):
        prefix, part = f"{name}_", hint.__origin__
        return lambda plain: (
            part.parse({key[len(prefix) :]: value for key, value in plain.items() if key.startswith(prefix)}) or None
        )
    key, parse = name.removesuffix("_"), _parser_of(hint)
    return lambda plain: parse(plain.get(key))


def _parser_of(hint: Any) -> _Parser:
    """A function from a value of JSON to one of this type; it returns None for any other."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limit(_parser_of(arguments[0]), dict(each for each in hint.__metadata__ if isinstance(each, tuple)))
    if origin in (Union, types.UnionType):
        return _parser_of(next(each for each in arguments if each is not types.NoneType))
    if origin is Literal:
        return lambda value: value if isinstance(value, str | int) and value in arguments else None
    if origin is tuple:
        return _list_parser(_parser_of(arguments[0]), keep_unknown=allows_none(arguments[0]))
    if origin is not None:  # Mapping
        return _dict_parser(*map(_parser_of, arguments))
    if issubclass(hint, CapturedPart):
        return lambda value: hint.parse(value) if isinstance(value, dict) else None
    return _SCALARS[hint]


def _limit(parse: _Parser, limits: Mapping[str, Any]) -> _Parser:
    """The parser, for which a number beyond its limits is not known."""
    lowest, highest = limits.get("minimum"), limits.get("maximum")
    if lowest is None and highest is None:
        return parse

    def parse_number(value: object) -> Any:
        number = parse(value)
        is_beyond = (
            number is None or (lowest is not None and number < lowest) or (highest is not None and number > highest)
        )
        return None if is_beyond else number

    return parse_number


def allows_none(hint: Any) -> bool:
    """Whether the reader's type has None in it."""
    hint = hint.__origin__ if get_origin(hint) is Annotated else hint
    return types.NoneType in get_args(hint)


def _list_parser(parse: _Parser, *, keep_unknown: bool) -> _Parser:
    def parse_list(value: object) -> tuple[Any, ...] | None:
        if not isinstance(value, list):
            return None
        parsed = map(parse, value)
        return tuple(parsed if keep_unknown else (each for each in parsed if each is not None))

    return parse_list


def _dict_parser(parse_key: _Parser, parse: _Parser) -> _Parser:
    def parse_dict(value: object) -> dict[Any, Any] | None:
        if not isinstance(value, dict):
            return None
        parsed = ((parse_key(key), parse(item)) for key, item in value.items())
        return {key: item for key, item in parsed if key is not None and item is not None}

    return parse_dict


def _parse_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -_END_OF_COUNTS < value < _END_OF_COUNTS else None


_SCALARS: Mapping[type, _Parser] = {
    bool: lambda value: value if type(value) is bool else None,
    int: lambda value: value if type(value) is int and 0 <= value < _END_OF_COUNTS else None,
    float: _parse_number,
    str: lambda value: value if type(value) is str else None,
}
