from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import report_samples as samples

import perfdoctor
from perfdoctor.reporters.notebook_html import NotebookHtml
from perfdoctor.reporters.place_text import PLACES_TITLE
from perfdoctor.testing import TraceBuilder

_TAGS = {
    *("div", "span", "p", "b", "code", "pre", "ul", "li", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


class Page(HTMLParser):
    """The text of a piece of HTML, which is well-formed and has no tags or attributes but those that are harmless."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.styles: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in _TAGS
        assert {name for name, _ in attrs} <= {"style", "role", "aria-label"}
        self.styles += [str(value) for name, value in attrs if name == "style"]
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


@pytest.mark.parametrize("name", samples.ALL)
def test_every_report_is_harmless_html(name):
    page = Page(NotebookHtml().render(samples.ALL[name]()))
    assert not any(re.search(r"url\(|expression|@import", style) for style in page.styles)
    assert {len(row) for row in page.rows} <= {5}


def test_the_short_form_has_verdict_ladder_bar_and_findings():
    page = Page(NotebookHtml().render(samples.whole()))
    assert page.text.startswith("Training (Lightning, DDP, 82% of kernels compiled): a step takes")
    assert "now 47.5 ms -> 1 fix -> about 21.0 ms" in page.text
    assert "Where a step's 47.5 ms go" in page.text
    widths = [float(each) for style in page.styles for each in re.findall(r"^width: ([\d.]+)%", style)]
    assert sum(widths) == pytest.approx(100, abs=0.1)
    assert page.rows[0] == ["", "finding", "where", "costs", "a fix saves"]
    assert page.rows[1] == [
        "high",
        "1. Matrix products run without Tensor Cores, in float32 (PD201)",
        "-",
        "37.5 ms (79%)",
        "24.3 ms",
    ]
    assert "What to do: Allow TF32" in page.text


def test_main_places_stand_above_the_bar_with_their_lines():
    text = Page(NotebookHtml().render(samples.at_places())).text
    first = "44% (19.0 ms) train.py:41 in train_one_epoch: 19.0 ms idle for a batch; data.__getitem__ 64 times; "
    assert text.index(first) < text.index("41 | for batch in loader:") < text.index("Where a step's")
    assert PLACES_TITLE not in NotebookHtml().render(samples.healthy())


def test_what_comes_from_a_trace_stays_text():
    text = Page(NotebookHtml().render(samples.hostile())).text
    assert "</td><script>alert(1)</script>" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_colours_are_those_of_the_surroundings():
    styles = Page(NotebookHtml().render(samples.loader_stall())).styles
    assert not any(re.search(r"(?<!-)color: (?!inherit)", style) for style in styles)
    assert all("rgba(128, 128, 128" in style for style in styles if "border-bottom" in style)


def test_many_findings_are_counted():
    report = samples.loader_stall()
    report = replace(report, findings=tuple(replace(report.findings[0], subject=str(n)) for n in range(20)))
    page = Page(NotebookHtml().render(report))
    assert len(page.rows) == 1 + 12
    assert "8 more findings: report.print()" in page.text


def test_a_report_of_the_api_is_shown_in_all_forms(tmp_path):
    trace = TraceBuilder().step(0, 1000).kernel("k", 5, 990).write(tmp_path / "trace.json")
    report = perfdoctor.analyze(trace)
    bundle = report._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/markdown", "text/plain"}
    assert bundle["text/html"] == report._repr_html_() == NotebookHtml().render(report)


def test_a_healthy_report_has_no_table_and_one_without_an_account_no_bar():
    assert not Page(NotebookHtml().render(samples.healthy())).rows
    assert "role=" not in NotebookHtml().render(samples.empty())
