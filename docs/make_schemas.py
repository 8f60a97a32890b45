"""Write the JSON Schemas that ship with the package, each of the dataclasses that it describes.

python docs/make_schemas.py
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from perfdoctor.comparison.comparison import Comparison
from perfdoctor.expectation import Expectation
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.facts.part import allows_none
from perfdoctor.field_guide.guide_answers import Guide
from perfdoctor.report.report import Report
from perfdoctor.report.to_plain import members_of
from perfdoctor.value_limits import MAX_INT64

PACKAGE = Path(__file__).resolve().parent.parent / "perfdoctor"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Mapping[type, Mapping[str, Any]] = {
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
}
_JSON_NAMES: Mapping[Any, str] = {float: "number", int: "integer", str: "string"}
_INT64 = {"type": "integer", "minimum": 0, "maximum": MAX_INT64}

Schema = dict[str, Any]


class _Schemas:
    """The schemas of classes: an object may have the members of its class and no others.

    Attributes:
        integer: The schema of an integer.
        definitions: The schema of each class that it needs, by its name.
    """

    def __init__(self, integer: Schema) -> None:
        self.integer = integer
        self.definitions: dict[str, Schema] = {}

    def of_class(self, cls: type) -> Schema:
        """The schema of an object of this class."""
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for key, hint, description in _members(cls):
            properties[key] = self.of_type(hint)
            if description:
                properties[key]["description"] = description
            if "later" not in _markers(hint):
                required.append(key)
        head = {"description": _first_line(cls), "type": "object"}
        return {**head, "additionalProperties": False, "required": required, "properties": properties}

    def of_type(self, hint: Any) -> Schema:
        """The schema of a value of this type."""
        schema, markers = self._of_plain_type(hint), _markers(hint)
        if "or null" not in markers and ("written" in markers or not allows_none(hint)):
            return schema
        if "enum" in schema:
            return {**schema, "enum": [*schema["enum"], None]}
        if "$ref" in schema or "anyOf" in schema:
            return {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
        known = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return {**schema, "type": [*known, "null"]}

    def _of_plain_type(self, hint: Any) -> Schema:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._of_limited(arguments[0], arguments[1:])
        if origin in (Union, types.UnionType):
            return self._of_union([each for each in arguments if each is not types.NoneType])
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin is tuple:
            return {"type": "array", "items": self.of_type(arguments[0])}
        if origin is not None:  # Mapping
            names = {} if arguments[0] is str else {"propertyNames": self._of_plain_type(arguments[0])}
            return {"type": "object", **names, "additionalProperties": self.of_type(arguments[1])}
        if hint is int:
            return dict(self.integer)
        if hint in _SCALARS:
            return dict(_SCALARS[hint])
        if hint.__name__ not in self.definitions:
            self.definitions[hint.__name__] = {}  # its place, before those of the classes that it needs
            self.definitions[hint.__name__] = self.of_class(hint)
        return {"$ref": f"#/$defs/{hint.__name__}"}

    def _of_limited(self, hint: Any, markers: tuple[Any, ...]) -> Schema:
        for each in markers:
            if isinstance(each, type):  # the class that says more than the type
                return self._of_plain_type(each)
        schema, limits = self._of_plain_type(hint), dict(each for each in markers if isinstance(each, tuple))
        if "enum" in limits:
            return {"enum": list(limits["enum"])}
        if "required" in limits:  # a mapping that has all of these keys, and no others
            names = list(limits["required"])
            properties = dict.fromkeys(names, schema["additionalProperties"])
            return {"type": "object", "additionalProperties": False, "required": names, "properties": properties}
        return {**schema, **limits}

    def _of_union(self, hints: list[Any]) -> Schema:
        if len(hints) == 1:
            return self._of_plain_type(hints[0])
        plain = list(dict.fromkeys(_JSON_NAMES[each] for each in hints if each in _JSON_NAMES))
        schema = {"type": [each for each in plain if each != "integer" or "number" not in plain]}
        others = [self._of_plain_type(each) for each in hints if each not in _JSON_NAMES]
        return {"anyOf": [schema, *others]} if others else schema


def _members(cls: type) -> Iterator[tuple[str, Any, str]]:
    """Key, type and description of each member of an object; those of a flat part with their prefix."""
    descriptions, hints = _descriptions(cls), get_type_hints(cls, include_extras=True)
    for name in members_of(cls) or hints:
        hint = hints.get(name)
        if hint is None:
            method = getattr(cls, name).fget
            hint, descriptions[name] = get_type_hints(method, include_extras=True)["return"], _first_line(method)
        if "flat" in _markers(hint):
            for key, inner, description in _members(hint.__origin__):
                yield f"{name}_{key}", inner, description
        elif get_origin(hint) is ClassVar:
            yield name, Literal[getattr(cls, name)], ""
        else:
            yield name.removesuffix("_"), hint, descriptions.get(name, "")


def _markers(hint: Any) -> tuple[Any, ...]:
    return tuple(getattr(hint, "__metadata__", ()))


def _first_line(documented: Any) -> str:
    return _as_json(inspect.cleandoc(documented.__doc__ or "").partition("\n")[0])


def _as_json(text: str) -> str:
    return re.sub(r"\bNone\b", "null", text)


def _descriptions(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        section = (inspect.cleandoc(base.__doc__ or "")).partition("\nAttributes:\n")[2]
        for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*(?:\n        .*)*)", section, re.MULTILINE):
            found.update(dict.fromkeys(names.split(", "), _as_json(" ".join(text.split()))))
    return found


def describe(cls: type, address: str, title: str, integer: Schema = _INT64) -> Schema:
    """The schema of a file that holds an object of this class.

    Args:
        cls: The class.
        address: The `$id` of the schema.
        title: Its title.
        integer: What integers are, where nothing else is said of one.
    """
    schemas = _Schemas(integer)
    whole = schemas.of_class(cls)
    head = {"$schema": _DRAFT, "$id": address, "title": title}
    return {**head, **whole, "$defs": schemas.definitions}


SCHEMAS: Mapping[str, tuple[Any, ...]] = {
    "capture/facts": (
        *(CapturedFacts, "perfdoctor.facts/1", "facts.json of one rank of a capture"),
        {"type": "integer", "minimum": 0},
    ),
    "reporters/report": (Report, "urn:perfdoctor:report:2", "perfdoctor report, version 2"),
    "reporters/comparison": (Comparison, "urn:perfdoctor:compare:1", "perfdoctor comparison, version 1"),
    "reporters/expectation": (Expectation, "perfdoctor.expect/1", "What a step should take on a device"),
    "field_guide/guide": (Guide, "perfdoctor.guide/1", "The field guide for one recording"),
}
"""By the place of the file in the package, without its suffix, what `describe` takes."""


def format_schema(schema: Schema) -> str:
    """The schema as JSON text, with a line for each property and each class."""
    lines = []
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
            lines.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    for place, described in SCHEMAS.items():
        (PACKAGE / f"{place}.schema.json").write_text(format_schema(describe(*described)), encoding="utf-8")
