from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.reporters import clean_text


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil.example\x1b\\link", "link"),
        ("a\r\nb\x00c\x08", "a bc"),
        ("\u202eevil\u2066", "evil"),
        ("a\U000e0041\u3164\u115f\u180e\ufe0fb", "ab"),
        ("x ##[error]stop ##vso[task.setvariable]y", "x # #[error]stop # #vso[task.setvariable]y"),
        ("lone \ud800", "lone \ufffd"),
        ("\x1b", ""),
    ],
)
def test_clean_removes_what_would_move_colour_or_reorder_text(text, cleaned):
    assert clean_text.clean_line(text) == cleaned


@pytest.mark.parametrize("text", ["void f<float, 4>(int*)", "naïve 日本 ∑", "[bold red]", "a|b", "50% of `x`"])
def test_clean_leaves_ordinary_names_alone(text):
    assert clean_text.clean_line(text) == text


@given(st.text())
def test_clean_gives_one_printable_line_and_is_idempotent(text):
    once = clean_text.clean_line(text)
    assert once == clean_text.clean_line(once)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in once)


@given(st.text("ab[]\x1b\n\t ", max_size=40))
def test_a_cleaned_block_keeps_its_lines_and_nothing_of_an_escape(text):
    assert "\x1b" not in clean_text.clean_block(text)
    assert clean_text.clean_block("if x:\n\ty = 1\n") == "if x:\n    y = 1"


@given(st.text(max_size=200), st.integers(8, 60))
def test_shortened_text_fits_and_keeps_both_ends(text, width):
    short = clean_text.shorten(text, width)
    assert len(short) <= width
    assert (short == text) if len(text) <= width else (short.startswith(text[:2].rstrip()) and "..." in short)


@given(st.text(" :\nab\t", max_size=60))
def test_no_line_of_defused_text_is_a_command(text):
    defused = clean_text.defuse_commands(text)
    assert len(defused) == len(text)
    assert not any(line.lstrip().startswith("::") for line in defused.splitlines())
    assert "::" in text or defused == text
