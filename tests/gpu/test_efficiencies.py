"""The table of efficiencies that ships with the package."""

from __future__ import annotations

import numpy as np

from perfdoctor.gpu.roofline.efficiencies import SIZES, Cell, _read_table, efficiencies_of, size_classes


def test_each_cell_has_quartiles_in_order_and_each_family_has_one() -> None:
    table = _read_table()
    for cell, (low, expected, high) in table.items():
        assert 0 < low <= expected <= high <= 1, cell
        assert cell.size in (*SIZES, "any"), cell
    assert {cell.family for cell in table} == {"gemm", "convolution", "attention", "memory"}
    assert all(Cell(family) in table for family in ("gemm", "convolution", "attention", "memory"))


def test_longer_products_reach_more_of_their_roof() -> None:
    reached = efficiencies_of("gemm", "bf16", np.array([5e3, 2e4, 2e5]), "Ampere")[:, 1]
    assert (np.diff(reached) > 0).all()


def test_a_family_that_nobody_recorded_is_unknown() -> None:
    assert np.isnan(efficiencies_of("scan", "fp32", np.array([1e5, np.nan]), "Ampere")).all()


def test_sizes_begin_at_their_limits() -> None:
    assert size_classes(np.array([0, 2_999, 3_000, 10_000, 49_999, 50_000, np.nan])).tolist() == [0, 0, 1, 2, 2, 3, 3]
