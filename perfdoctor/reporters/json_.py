"""The report as JSON, schema perfdoctor.report/2, and the JSON Schema that describes it."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report
from perfdoctor.reporters.reporter import Reporter


@frozen_dataclass
class Json(Reporter):
    """`Report.to_dict()` as indented JSON; NaN and infinity, which JSON lacks, become null."""

    suffix = ".json"

    def render_prepared(self, report: Report) -> str:
        """The report as JSON text."""
        return render_plain(report.to_dict())


def render_plain(plain: dict[str, Any]) -> str:
    """Plain data as indented JSON text."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(plain, option=option).decode()
    except TypeError:  # a lone surrogate, from a file name that is not UTF-8: no JSON text can hold it
        return orjson.dumps(_replace_surrogates(plain), option=option).decode()


def _replace_surrogates(value: Any) -> Any:
    """The same plain data with a question mark for each lone surrogate."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return [_replace_surrogates(item) for item in value] if isinstance(value, list) else value


def load_schema(name: str = "report") -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a "report", a "comparison" or an "expectation", as plain data."""
    file = files("perfdoctor.reporters").joinpath(f"{name}.schema.json")
    schema: dict[str, Any] = orjson.loads(file.read_bytes())
    return schema
