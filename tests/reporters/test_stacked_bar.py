from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.reporters.terminal import allocate_cells


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=6), st.integers(10, 200))
def test_the_cells_of_a_bar_fill_it_and_hide_nothing(shares, width):
    counts = allocate_cells(shares, width)
    assert sum(counts) == (width if sum(shares) > 0 else 0)
    assert all((count > 0) == (share > 0) for count, share in zip(counts, shares, strict=True)) or sum(shares) == 0


@given(st.lists(st.integers(1, 1000), min_size=4, max_size=4))
def test_a_cell_count_is_within_a_cell_of_its_share_unless_it_had_to_be_shown(shares):
    for count, share in zip(allocate_cells(shares, 76), shares, strict=True):
        assert abs(count - 76 * share / sum(shares)) < 4
