"""The table of what comparable kernels reach: each row in order and with a source, and what stands in for a gap."""

from __future__ import annotations

import csv
from importlib.resources import files

import pytest

from perfdoctor.analyzers._pd209_slow_kernels import FAMILIES
from perfdoctor.gpu.roofline.comparable_kernels import find_reach

ROWS = list(
    csv.DictReader(
        (files("perfdoctor.gpu") / "data" / "comparable_kernels.csv").read_text(encoding="utf-8").splitlines()
    )
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['family']}-{row['variant']}-{row['generation']}")
def test_a_row_is_in_order_and_names_its_source(row: dict[str, str]) -> None:
    low, expected, high = (float(row[name]) for name in ("low", "expected", "high"))
    assert 0 < low < expected < high < 1
    assert len(row["source"]) > 20
    assert row["family"] in FAMILIES


def test_no_row_stands_twice() -> None:
    keys = [(row["family"], row["variant"], row["generation"]) for row in ROWS]
    assert len(keys) == len(set(keys))


def test_a_gap_is_filled_by_the_nearest_row() -> None:
    assert find_reach("elementwise", generation="gfx942") != find_reach("elementwise", generation="Hopper")
    assert find_reach("elementwise", generation="Blackwell") == find_reach("elementwise")
    assert find_reach("attention", "causal", "Turing") == find_reach("attention")
    assert find_reach("attention", "causal", "Hopper") != find_reach("attention")
    assert find_reach("norm", "any") is None  # of a norm the rows' length has to be known
    assert find_reach("random") is None
