from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor import units
from perfdoctor.report.finding import Evidence
from perfdoctor.reporters import format_values
from perfdoctor.savings.saving import Saving, SavingAlone


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
    assert units.format_duration(ns) == words


@given(st.integers(0, 10**14))
def test_a_duration_reads_back_within_its_digits(ns):
    number, unit = units.format_duration(ns).split(" ")
    back = float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert back == pytest.approx(ns, rel=0.005)


@pytest.mark.parametrize(
    ("low_ns", "high_ns", "words"),
    [
        (0, 800_000, "0 to 800 us"),
        (2_000_000, 30_000_000, "2.00 to 30.0 ms"),
        (800_000, 30_000_000, "800 us to 30.0 ms"),
    ],
)
def test_a_range_names_its_unit_once_where_it_can(low_ns, high_ns, words):
    assert units.format_range(low_ns, high_ns) == words


@pytest.mark.parametrize(
    ("fraction", "words"),
    [(None, "n/a"), (0, "0%"), (0.0001, "<0.1%"), (0.004, "0.4%"), (0.0994, "9.9%"), (0.0996, "10%"), (1, "100%")],
)
def test_shares_say_nothing_only_of_nothing(fraction, words):
    assert units.format_share(fraction) == words


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
def test_evidence_is_formatted_in_its_unit(evidence, words):
    assert format_values.format_evidence(evidence) == words


@pytest.mark.parametrize(
    ("saving", "words"),
    [
        (Saving(), "saving: n/a"),
        (Saving(0, None, 12_300_000, "bounded"), "saves up to 12.3 ms (bounded)"),
        (Saving(0, None, 12_300_000, "replayed"), "saves up to 12.3 ms (replayed)"),
        (Saving(0, 9_800_000, 12_300_000, "bounded"), "saves up to 12.3 ms (expected 9.80 ms, bounded)"),
        (Saving(1_000_000, 9_800_000, 12_300_000, "bounded"), "saves about 9.80 ms (1.00 to 12.3 ms, bounded)"),
        (Saving(8_000_000, 9_800_000, 12_300_000, "replayed"), "saves about 9.80 ms (8.00 to 12.3 ms, replayed)"),
        (Saving(0, 0, 0, "bounded"), "saves nothing alone: other work sets the pace"),
        (Saving(0, 0, 0, "replayed", SavingAlone(0, 5, 9)), "saves nothing more after the fixes above"),
        (Saving(9_800_000, 9_800_000, 9_800_000, "measured"), "saves 9.80 ms (measured)"),
    ],
)  # fmt: skip
def test_a_saving_names_its_basis(saving, words):
    assert format_values.format_saving(saving) == words
