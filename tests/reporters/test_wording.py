from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.report.finding import Evidence
from perfdoctor.reporters import wording
from perfdoctor.savings.saving import Saving


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (None, "n/a"), (0, "0 ms"), (0.2, "0 ms"), (7, "7 ns"), (999, "999 ns"), (999.9, "1.00 us"),
        (85_300, "85.3 us"),
        (999_499, "999 us"), (999_600, "1.00 ms"), (9_994_000, "9.99 ms"), (9_996_000, "10.0 ms"),
        (43_100_000, "43.1 ms"),
        (99_960_000, "100 ms"), (812_000_000, "812 ms"), (1_240_000_000, "1.24 s"), (3_600_000_000_000, "3600 s"),
    ],
)  # fmt: skip
def test_durations_have_three_digits_and_the_unit_that_suits(ns, words):
    assert wording.duration(ns) == words


@given(st.integers(0, 10**14))
def test_a_duration_reads_back_within_its_digits(ns):
    number, unit = wording.duration(ns).split(" ")
    back = float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert back == pytest.approx(ns, rel=0.005)


@pytest.mark.parametrize(
    ("fraction", "words"),
    [
        (None, "n/a"),
        (0, "0%"),
        (0.0001, "<0.1%"),
        (0.004, "0.4%"),
        (0.0994, "9.9%"),
        (0.0996, "10%"),
        (1, "100%"),
    ],
)
def test_shares_say_nothing_only_of_nothing(fraction, words):
    assert wording.share(fraction) == words


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (Evidence("", None, "ns"), "n/a"),
        (Evidence("", 21_400_000, "ns"), "21.4 ms"),
        (Evidence("", 44.1, "%"), "44%"),
        (Evidence("", 1248, "count"), "1,248"),
        (Evidence("", 1_310_000_000, "bytes"), "1.31 GB"),
        (Evidence("", 12, "bytes"), "12 bytes"),
        (Evidence("", "a\nb"), "a b"),
        (Evidence("", 2.5, "GB/s"), "2.50 GB/s"),
        (Evidence("", 7.962, "x"), "7.96 x"),
        (Evidence("", 12345.6), "12,346"),
        (Evidence("", 10.0, "count"), "10"),
    ],
)
def test_evidence_is_told_in_its_unit(evidence, words):
    assert wording.quantity(evidence) == words


@pytest.mark.parametrize(
    ("saving", "words"),
    [
        (Saving(), "saving: n/a"),
        (Saving(0, None, 12_300_000, "bounded"), "saves up to 12.3 ms a step (bounded)"),
        (Saving(1_000_000, 9_800_000, 12_300_000, "bounded"),
         "saves up to 12.3 ms a step (bounded, at least 1.00 ms, expected 9.80 ms)"),
        (Saving(8_000_000, 9_800_000, 12_300_000, "replayed"),
         "saves about 9.80 ms a step (replayed, 8.00 ms to 12.3 ms)"),
        (Saving(0, 0, 0, "bounded"),
         "saves nothing by itself (bounded): other work sets the pace, or a finding above counts it"),
        (Saving(9_800_000, 9_800_000, 9_800_000, "measured"), "saves 9.80 ms a step (measured)"),
    ],
)  # fmt: skip
def test_a_saving_says_how_it_was_got(saving, words):
    assert wording.saving(saving, " a step") == words


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x9b2Jgone", "gone"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil.example\x1b\\link", "link"),
        ("a\r\nb\x00c\x08", "a bc"),
        ("\u202eevil\u2066", "evil"),
        ("lone \ud800", "lone \ufffd"),
        ("\x1b", ""),
    ],
)
def test_clean_takes_out_what_would_move_colour_or_turn_text(text, cleaned):
    assert wording.clean(text) == cleaned


@pytest.mark.parametrize("text", ["void f<float, 4>(int*)", "naïve 日本 ∑", "[bold red]", "a|b", "50% of `x`"])
def test_clean_leaves_ordinary_names_alone(text):
    assert wording.clean(text) == text


@given(st.text())
def test_clean_gives_one_printable_line_and_settles(text):
    once = wording.clean(text)
    assert once == wording.clean(once)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in once)


@given(st.text("ab[]\x1b\n\t ", max_size=40))
def test_a_cleaned_block_keeps_its_lines_and_nothing_of_an_escape(text):
    assert "\x1b" not in wording.clean_block(text)
    assert wording.clean_block("if x:\n\ty = 1\n") == "if x:\n    y = 1"


@given(st.text(max_size=200), st.integers(8, 60))
def test_shortened_text_fits_and_keeps_both_ends(text, width):
    short = wording.shorten(text, width)
    assert len(short) <= width
    assert (short == text) if len(text) <= width else (short.startswith(text[:2].rstrip()) and "..." in short)
