from __future__ import annotations

import re
from dataclasses import replace

import pytest
import report_samples as samples
from markdown_it import MarkdownIt

from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.pull_request import MARKER, PullRequest


@pytest.mark.parametrize("name", samples.ALL)
def test_the_short_form_is_as_recorded(name, golden):
    golden(f"{name}.pr.md", PullRequest().render(samples.ALL[name]()))


@pytest.mark.parametrize("name", samples.ALL)
def test_what_is_folded_opens_and_closes(name):
    text = PullRequest().render(samples.ALL[name]())
    assert text.startswith(f"{MARKER}\n")
    assert text.count("<details>") == text.count("</details>")
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert shown.count("<details>") == shown.count("</details>") == text.count("<details>")


def _table(text: str) -> list[list[str]]:
    rows = [line for line in text.split("<details>")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_the_table_has_place_cost_and_saving():
    head, _, first, *_ = _table(PullRequest().render(samples.loader_stall()))
    assert head == ["", "finding", "where", "costs", "a fix saves"]
    assert first == [
        "🔴 high",
        "**1. The GPU waits for the DataLoader** (PD101)",
        "train.py:41 in train_one_epoch",
        "19.0 ms (44%)",
        "up to 19.0 ms",
    ]


def test_rows_keep_their_cells_whatever_a_name_holds():
    rows = _table(PullRequest().render(samples.hostile()))
    assert len(rows) == 3
    assert {len(row) for row in rows} == {5}


def test_nothing_of_a_trace_opens_a_tag_or_a_link():
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(PullRequest().render(samples.hostile()))
    assert set(re.findall(r"<(\w+)", shown)) <= {
        *("details", "summary", "h3", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "ul", "li"),
        *("code", "pre", "br"),
    }
    assert "\x1b" not in shown


def test_a_report_of_any_size_fits_into_a_comment():
    report = samples.loader_stall()
    long = replace(report.findings[0], title="ü" * 4_000, advice="long " * 4_000)
    report = replace(report, findings=tuple(replace(long, subject=str(number)) for number in range(100)))
    text = PullRequest().render(report)
    assert len(text.encode()) < 65_536
    assert len(_table(text)) == 2 + 30
    assert "and 70 more findings below" in text
    assert re.search(r"\d+ parts of the report did not fit into this comment\.\n$", text)
    assert text.count("<details>") == text.count("</details>") >= 1


def test_a_report_without_findings_has_no_table():
    text = PullRequest().render(samples.healthy())
    assert not _table(text)
    assert "nothing was found" in text


def test_the_whole_report_is_another_text():
    report = samples.whole()
    assert len(PullRequest().render(report).split("<details>")[0]) < len(Markdown().render(report)) / 3
