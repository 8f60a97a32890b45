"""Rows before and after: matched by what they do, and adding up to the difference of the mean step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.match_rows import MAX_ROWS, ChangeTable, RowTime, SideRows, match_rows
from perfdoctor.analysis.step_breakdown import RowKey

_TABLES = ("kernels", "ops", "modules", "collectives")


def side(*recordings: dict[RowKey, list[float]]) -> SideRows:
    rows = [{key: RowTime(np.array(steps, float), 1.0) for key, steps in each.items()} for each in recordings]
    means = [sum(float(np.mean(steps)) for steps in each.values()) for each in recordings]
    return SideRows(rows, round(float(np.mean(means))))


def kernel(name: str, op: str = "addmm", shape: str = "[[64,512]]") -> RowKey:
    return RowKey(name, op, shape, "kernel")


def statuses(table: ChangeTable) -> dict[str, str]:
    return {row.name: row.status for row in table.rows}


def test_a_kernel_that_does_the_same_work_replaces_the_other() -> None:
    before = side({kernel("sgemm"): [500.0] * 5, kernel("norm", "layer_norm"): [50.0] * 5})
    after = side({kernel("bf16_gemm"): [100.0] * 5, kernel("norm", "layer_norm"): [50.0] * 5})
    first, second = match_rows("kernels", before, after).rows
    assert (first.name, first.new_name, first.status, first.difference_ns) == ("sgemm", "bf16_gemm", "replaced", -400)
    assert (second.status, second.difference_ns) == ("same", 0)


def test_several_kernels_may_replace_one() -> None:
    before = side({kernel("gemm"): [500.0] * 5})
    after = side({kernel("splitK"): [300.0] * 5, kernel("reduce"): [100.0] * 5})
    (row,) = match_rows("kernels", before, after).rows
    assert (row.name, row.new_name, row.difference_ns, row.after_count) == ("gemm", "reduce + splitK", -100, 2.0)


def test_other_shapes_of_an_op_are_one_row() -> None:
    before = side({RowKey("addmm", shape="[[32,8]]"): [10.0] * 5, RowKey("addmm", shape="[[32,16]]"): [20.0] * 5})
    after = side({RowKey("addmm", shape="[[64,8]]"): [25.0] * 5})
    (row,) = match_rows("ops", before, after).rows
    assert (row.name, row.new_name, row.shape, row.status, row.difference_ns) == ("addmm", None, "", "replaced", -5)


def test_kernels_without_an_op_come_and_go() -> None:
    before, after = side({kernel("old", "", ""): [10.0] * 5}), side({kernel("new", "", ""): [30.0] * 5})
    table = match_rows("kernels", before, after)
    assert statuses(table) == {"old": "went", "new": "came"}


def test_unlike_ops_do_not_replace_each_other() -> None:
    before = side({kernel("softmax", "softmax"): [10.0] * 5})
    after = side({kernel("flash", "scaled_dot_product_attention"): [30.0] * 5})
    assert statuses(match_rows("kernels", before, after)) == {"softmax": "went", "flash": "came"}


def test_faster_and_slower_only_beyond_the_noise_of_the_row() -> None:
    noisy, steady = [90.0, 110.0, 95.0, 105.0, 100.0], [100.0] * 5
    before = side({kernel("noisy"): noisy, kernel("slow"): steady, kernel("fast"): steady})
    after = side({kernel("noisy"): [ns + 5 for ns in noisy], kernel("slow"): [120.0] * 5, kernel("fast"): [80.0] * 5})
    rows = {row.name: row for row in match_rows("kernels", before, after).rows}
    assert {name: (row.status, row.beyond_noise) for name, row in rows.items()} == {
        "noisy": ("same", False),
        "slow": ("slower", True),
        "fast": ("faster", True),
    }


def test_a_row_that_only_another_scale_changes_is_the_same() -> None:
    """Two captures of a program whose steps without the profiler differ because something else waits longer."""

    def recorded(scale: float) -> SideRows:
        times = {kernel("adam"): [100.0, 101, 99, 100, 102], kernel("gemm"): [50.0] * 5}
        rows = {key: RowTime(scale * np.array(steps), 1.0, scale) for key, steps in times.items()}
        return SideRows([rows], round(scale * 150.4))

    table = match_rows("kernels", recorded(1.0), recorded(0.5))
    assert {row.name: (row.status, row.beyond_noise) for row in table.rows} == {
        "adam": ("same", False),
        "gemm": ("same", False),
    }
    assert table.rows[0].difference_ns == pytest.approx(-50, abs=1)


def test_of_too_few_steps_the_noise_is_not_known() -> None:
    (row,) = match_rows("kernels", side({kernel("a"): [10.0]}), side({kernel("a"): [20.0]})).rows
    assert (row.status, row.beyond_noise) == ("slower", None)


def test_a_recording_that_lacks_a_row_has_no_time_in_it() -> None:
    before = side({kernel("a"): [10.0]}, {kernel("b", "mm"): [10.0]})
    after = side({kernel("a"): [10.0], kernel("b", "mm"): [10.0]})
    table = match_rows("kernels", before, after)
    assert {row.name: (row.before_ns, row.after_ns) for row in table.rows} == {"a": (5, 10), "b": (5, 10)}
    assert (table.difference_ns, table.remainder_ns) == (10, 0)


def test_rows_beyond_the_most_are_in_the_remainder() -> None:
    before = side({kernel(f"k{n}", f"op{n}"): [10.0] for n in range(MAX_ROWS + 50)})
    after = side({kernel(f"k{n}", f"op{n}"): [11.0] for n in range(MAX_ROWS + 50)})
    table = match_rows("kernels", before, after)
    assert len(table.rows) == MAX_ROWS
    assert (table.difference_ns, table.remainder_ns) == (MAX_ROWS + 50, 50)


keys = st.builds(
    RowKey,
    st.sampled_from("abcdef"),
    st.sampled_from(["", "mm", "add"]),
    st.sampled_from(["", "[[1]]", "[[2]]"]),
    st.sampled_from(["kernel", "idle_launch"]),
)
recordings = st.lists(
    st.integers(1, 5).flatmap(
        lambda steps: st.dictionaries(keys, st.lists(st.floats(0, 1e9), min_size=steps, max_size=steps), max_size=12)
    ),
    min_size=1,
    max_size=3,
)


@given(st.sampled_from(_TABLES), recordings, recordings)
def test_rows_and_remainder_add_up_to_the_difference_exactly(
    name: str, before: list[dict[RowKey, list[float]]], after: list[dict[RowKey, list[float]]]
) -> None:
    old, new = side(*before), side(*after)
    table = match_rows(name, old, new)
    assert table.difference_ns == new.mean_ns - old.mean_ns
    assert table.remainder_ns is not None
    assert sum(row.difference_ns for row in table.rows) + table.remainder_ns == table.difference_ns
    # Nothing is left over where all rows are shown: each side's rows are its mean step.
    assert table.remainder_ns == 0 or not (any(before) and any(after))
    assert all(min(row.before_ns, row.after_ns) >= 0 for row in table.rows)


@given(st.sampled_from(_TABLES), recordings)
def test_a_side_against_itself_explains_nothing(name: str, recording: list[dict[RowKey, list[float]]]) -> None:
    table = match_rows(name, side(*recording), side(*recording))
    assert {row.difference_ns for row in table.rows} <= {0}
    assert {row.status for row in table.rows} <= {"same"}
