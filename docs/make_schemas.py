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
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.facts.part import CapturedPart, allows_none

PACKAGE = Path(__file__).resolve().parent.parent / "perfdoctor"
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Mapping[type, Mapping[str, Any]] = {
    int: {"type": "integer", "minimum": 0},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
}

Schema = dict[str, Any]


class _FactsSchema:
    """The schema of `CapturedFacts`: an object may have the fields of its class and no others.

    Attributes:
        definitions: The schema of each class that it needs, by its name.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, Schema] = {}

    def of_class(self, cls: type[CapturedPart]) -> Schema:
        """The schema of an object of this class."""
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for key, hint, description in _members(cls):
            properties[key] = self.of_type(hint)
            if description:
                properties[key]["description"] = description
            if "later" not in _markers(hint):
                required.append(key)
        head = {"description": inspect.cleandoc(cls.__doc__ or "").partition("\n")[0], "type": "object"}
        return {**head, "additionalProperties": False, "required": required, "properties": properties}

    def of_type(self, hint: Any) -> Schema:
        """The schema of a value of this type."""
        schema, markers = self._of_plain_type(hint), _markers(hint)
        if "or null" not in markers and ("written" in markers or not allows_none(hint)):
            return schema
        if "enum" in schema:
            return {**schema, "enum": [*schema["enum"], None]}
        if "$ref" in schema:
            return {"anyOf": [schema, {"type": "null"}]}
        return {**schema, "type": [schema["type"], "null"]}

    def _of_plain_type(self, hint: Any) -> Schema:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            limits = dict(each for each in arguments[1:] if isinstance(each, tuple))
            return {**self._of_plain_type(arguments[0]), **limits}
        if origin in (Union, types.UnionType):
            return self._of_plain_type(arguments[0])
        if origin is Literal:
            return {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        if origin is tuple:
            return {"type": "array", "items": self.of_type(arguments[0])}
        if origin is not None:  # Mapping
            names = {} if arguments[0] is str else {"propertyNames": self._of_plain_type(arguments[0])}
            return {"type": "object", **names, "additionalProperties": self.of_type(arguments[1])}
        if hint in _SCALARS:
            return dict(_SCALARS[hint])
        if hint.__name__ not in self.definitions:
            self.definitions[hint.__name__] = {}  # its place, before those of the classes that it needs
            self.definitions[hint.__name__] = self.of_class(hint)
        return {"$ref": f"#/$defs/{hint.__name__}"}


def _members(cls: type[CapturedPart]) -> Iterator[tuple[str, Any, str]]:
    """Key, type and description of each member of an object; those of a flat part with their prefix."""
    descriptions = _descriptions(cls)
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if "flat" in _markers(hint):
            for key, inner, description in _members(hint.__origin__):
                yield f"{name}_{key}", inner, description
        else:
            yield name.removesuffix("_"), hint, descriptions.get(name, "")


def _markers(hint: Any) -> tuple[Any, ...]:
    return tuple(getattr(hint, "__metadata__", ()))


def _descriptions(cls: type) -> dict[str, str]:
    """What the docstrings of a class and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        section = (inspect.cleandoc(base.__doc__ or "")).partition("\nAttributes:\n")[2]
        for name, text in re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def describe_facts() -> Schema:
    """The schema of facts.json of one rank."""
    schemas = _FactsSchema()
    whole = schemas.of_class(CapturedFacts)
    head = {"$schema": _DRAFT, "$id": "perfdoctor.facts/1", "title": "facts.json of one rank of a capture"}
    return {**head, **whole, "$defs": schemas.definitions}


SCHEMAS: Mapping[str, Any] = {"capture/facts": describe_facts}
"""By the place of the file in the package, without its suffix, the function that makes the schema."""


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
    for place, describe in SCHEMAS.items():
        (PACKAGE / f"{place}.schema.json").write_text(format_schema(describe()), encoding="utf-8")
