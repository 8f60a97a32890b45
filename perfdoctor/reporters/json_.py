"""The report as JSON, schema perfdoctor.report/1, and the JSON Schema that describes it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import orjson

from perfdoctor.report.report import Report
from perfdoctor.reporters.reporter import Reporter


@dataclass(frozen=True, slots=True)
class Json(Reporter):
    """`Report.to_dict()` as indented JSON; NaN and infinity, which JSON lacks, become null."""

    suffix: ClassVar[str] = ".json"

    def render(self, report: Report) -> str:
        """The report as JSON text."""
        plain = report.to_dict()
        try:
            return _dumped(plain)
        except TypeError:  # a lone surrogate, from a file name that is not UTF-8: no JSON text can hold it
            return _dumped(_encodable(plain))


def _dumped(value: Any) -> str:
    return orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    ).decode()


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def load_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the report, as plain data."""
    schema: dict[str, Any] = orjson.loads(files("perfdoctor.reporters").joinpath("report.schema.json").read_bytes())
    return schema
