from __future__ import annotations

import re
from dataclasses import replace

import pytest
import report_samples as samples
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.report.finding import Recurrence
from perfdoctor.reporters.escape_markdown import code_block, code_span, escape
from perfdoctor.reporters.markdown import Markdown
from perfdoctor.reporters.report_facts import main_findings


@pytest.mark.parametrize("name", samples.ALL)
def test_the_markdown_report_is_as_recorded(name, golden):
    golden(f"{name}.md", Markdown().render(samples.ALL[name]()))


def _outside_code(text: str) -> str:
    """The text without code_block blocks and code spans, as a Markdown parser would see them."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", text, flags=re.S | re.M)
    return re.sub(r"(?<![`\\])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def test_nothing_of_a_trace_opens_a_tag_or_a_link_outside_code():
    outside = _outside_code(Markdown().render(samples.hostile()))
    assert "<script" not in outside
    assert not re.search(r"(?<!\\)\[[^\]]*\]\(", outside)
    assert "http://" not in outside
    assert "\x1b" not in outside


def test_table_rows_keep_their_number_of_cells():
    text = Markdown().render(samples.four_ranks())
    rows = [line for line in text.split("\n") if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4, 7}


def _long_report(findings: int, evidence: int = 4):
    """A report with many findings, of which each third comes now and then, and each fifth is worth nothing."""
    base = samples.loader_stall()
    first = base.findings[0]
    evidence = first.evidence[:1] * evidence
    made = [replace(first, title=f"Title {number}", evidence=evidence) for number in range(findings)]
    made[2::3] = [replace(each, recurrence=Recurrence(2, 8, 1_000, 2_000)) for each in made[2::3]]
    made[4::5] = [replace(each, severity="info", recurrence=None) for each in made[4::5]]
    warnings = tuple(f"{chr(97 + number // 26)}{chr(97 + number % 26)} is odd" for number in range(80))
    traces = (replace(base.traces[0], warnings=warnings),)
    return replace(base, findings=tuple(made), traces=traces)


@pytest.mark.parametrize(("findings", "evidence"), [(1, 4), (12, 8), (40, 4), (400, 4), (3, 300)])
def test_a_report_has_less_than_200_lines(findings, evidence):
    assert len(Markdown().render(_long_report(findings, evidence)).splitlines()) < 200


def test_findings_that_have_no_room_stand_in_a_table():
    report = _long_report(40)
    text = Markdown().render(report)
    main = [each.title for each in main_findings(report)]
    whole = re.findall(r"^### \d+\. (Title \d+) ", text, re.MULTILINE)
    short = re.findall(r"^\| (\d+) \| (Title \d+) .*\| 19.0 ms \(44%\) \| up to 19.0 ms \|$", text, re.MULTILINE)
    assert len(whole) > 2
    assert whole + [title for _, title in short] == main
    assert [int(number) for number, _ in short] == list(range(len(whole) + 1, len(main) + 1))


def test_long_lists_say_how_much_more_there_is():
    text = Markdown().render(_long_report(400))
    assert "\n- and 68 more\n" in text  # of 80 warnings
    assert re.search(r"^and \d+ more$", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("`x`", r"\`x\`"),
        ("*a* ~b~", r"\*a\* \~b\~"),
        ("[x](http://e)", r"\[x\](http&#58;//e)"),
        ("__init__", r"\_\_init\_\_"),
        ("$x$", r"\$x\$"),
        ("one\ntwo", "one two"),
    ],
)
def test_special_characters_are_escaped(text, escaped):
    assert escape(text) == escaped


@pytest.mark.parametrize("text", ["num_workers is 0", "43.1 ms (44%)", "train.py:41", "a-b", "f(x)"])
def test_ordinary_words_stay_readable(text):
    assert escape(text) == text


@given(st.text(alphabet="a` |\n", max_size=30))
def test_a_code_span_cannot_be_left_early(text):
    span = code_span(text)
    if span:
        fence = re.match("`+", span)[0] if not span.startswith("` ") else "`"
        inside = span[len(fence) : len(span) - len(fence)]
        assert span.endswith(fence)
        assert fence not in re.findall("`+", inside)
        assert "\n" not in span


@given(st.text(alphabet="a`~\n ", max_size=60))
def test_a_fence_is_longer_than_any_backticks_within(text):
    first, *inside, last = code_block(text).split("\n")
    assert first == last
    assert set(first) == {"`"}
    assert first not in "\n".join(inside)


def test_a_reference_is_a_link_only_when_it_is_nothing_else():
    assert "<https://pytorch.org/docs/stable/data.html>" in Markdown().render(samples.loader_stall())
    assert "<http" not in Markdown().render(samples.hostile())
