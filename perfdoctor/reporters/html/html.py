"""The report as one HTML page: the text from a template, charts from data within the page, nothing from a network."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.report import Report
from perfdoctor.reporters.html.chart_sections import BASIS_TEXTS, chart_sections
from perfdoctor.reporters.html.page_data import page_data
from perfdoctor.reporters.html.page_view import page_view
from perfdoctor.reporters.html.table_view import shown_table
from perfdoctor.reporters.report_facts import has_steps
from perfdoctor.reporters.reporter import Reporter

if TYPE_CHECKING:
    from jinja2 import Template

# In the order in which they are joined: each uses only what stands before it.
_STYLES = ("vendor/uplot/uPlot.min.css", "assets/page.css", "assets/charts.css", "assets/print.css")
_LIBRARY = "vendor/uplot/uPlot.iife.min.js"
_SCRIPTS = (
    "decode", "format_values", "colours", "theme", "canvas_chart", "timeline_model", "timeline_findings", "timeline",
    "flames", "treemap", "heat_map", "plot", "roofline", "steps", "memory", "tables", "page",
)  # fmt: skip
_FOLDER = "perfdoctor.reporters.html"


@frozen_dataclass
class Html(Reporter):
    """One file that opens from disk: readable without its script, and forbidden by its own policy to load anything."""

    suffix = ".html"
    shortens_paths = True

    def render_prepared(self, report: Report) -> str:
        """The report as a page."""
        data = page_data(report)
        if data["ranks"] is not None:
            data["ranks"]["cell_name"] = "step" if has_steps(report) else "window"
            data["tables"].append(data["ranks"].pop("rows"))
        tables = [shown_table(table) for table in data["tables"]]
        data["tables"] = [compact for _, compact in tables]
        assets = _assets()
        return _template().render(
            page_view(report),
            tables=[view for view, _ in tables],
            charts=chart_sections(data),
            basis_texts=BASIS_TEXTS,
            chart_notes=data["notes"],
            data=_as_script_data(data),
            **assets,
        )


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_FOLDER, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    return environment.get_template("page.html.j2")


@cache
def _assets() -> dict[str, Any]:
    """Style, library and script as texts that are markup, and the policy that allows these three by their hashes."""
    from markupsafe import Markup

    style = "\n".join(map(_read, _STYLES))
    library = _read(_LIBRARY)
    parts = "\n".join(_read(f"assets/{name}.js") for name in _SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}\n}})();\n'
    scripts = f"{_hash(library)} {_hash(script)}"
    policy = (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # They are ours, hold no end tag (a test looks), and must not be escaped: their hashes are of what stands there.
    texts = {"style": style, "library": library, "script": script, "policy": policy}
    return {name: Markup(text) for name, text in texts.items()}


def _read(path: str) -> str:
    return files(_FOLDER).joinpath(path).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _as_script_data(data: dict[str, Any]) -> Any:
    """The data as JSON that ends no element, opens no comment, and is not a line break to any parser."""
    from markupsafe import Markup

    text = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
