"""The table of copies: direction, memory, size, rate, and the share of the link's rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.copies_table import copies_table
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import KERNEL

GEMM = "ampere_sgemm_128x64_nn"


def copying() -> TraceBuilder:
    """Two steps of 1 ms, each with a pinned and a pageable copy, one within the device, and a set."""
    b = TraceBuilder()
    for at in (0, 1000):
        b.step(at, 1000)
        b.frame("train.py(9): load", at, 60)
        b.memcpy("HtoD", at + 10, 100, 1 << 20, pinned=True, launch_us=at + 5)
        b.memcpy("HtoD", at + 120, 200, 1 << 20, launch_us=at + 20)
        b.memcpy("DtoD", at + 330, 10, 1 << 12, launch_us=at + 80)
        b.memset(at + 350, 5, 1 << 10, launch_us=at + 90)
        b.kernel(GEMM, at + 100, 120, stream=9, launch_us=at + 2)
    return b


def rows_of(b: TraceBuilder, by: str = "kind") -> dict[object, dict[str, object]]:
    return {row["name"]: row for row in copies_table(Rank(b.trace()), by).rows}


def test_copies_by_direction_and_memory() -> None:
    rows = rows_of(copying())
    assert {name: (row["step_ns"], row["window_ns"], row["count"], row["bytes"]) for name, row in rows.items()} == {
        "host to device, pageable": (200_000, 400_000, 1.0, 2 << 20),
        "host to device, pinned": (100_000, 200_000, 1.0, 2 << 20),
        "within the device": (10_000, 20_000, 1.0, 2 << 12),
        "set memory": (5_000, 10_000, 1.0, 2 << 10),
    }
    assert [row["direction"] for row in rows.values()] == ["HtoD", "HtoD", "DtoD", None]
    assert [row["memory"] for row in rows.values()] == ["pageable", "pinned", None, None]


def test_rates_and_what_the_link_allows() -> None:
    rows = rows_of(copying())
    pinned, pageable = rows["host to device, pinned"], rows["host to device, pageable"]
    rate = (1 << 20) / 100e-6
    assert pinned["bytes_per_s"] == pytest.approx(rate)
    assert pageable["bytes_per_s"] == pytest.approx(rate / 2)
    # 80 % of one direction of the A100's PCIe 4.0 x16.
    assert pinned["link_bytes_per_s"] == pytest.approx(0.8 * 32e9, rel=0.02)
    assert pinned["link_share"] == pytest.approx(rate / (0.8 * 32e9), rel=0.02)
    assert rows["set memory"]["link_share"] is None


def test_what_nothing_hides() -> None:
    rows = rows_of(copying())
    # The kernel runs from 100 to 220.
    assert rows["host to device, pinned"]["exposed_ns"] == 90_000
    assert rows["host to device, pageable"]["exposed_ns"] == 100_000


def test_a_copy_faster_than_the_link_came_from_a_cache() -> None:
    b = TraceBuilder().memcpy("DtoD", 10, 1.5, 1 << 24, launch_us=5)
    (row,) = rows_of(b).values()
    assert row["bytes_per_s"] == pytest.approx((1 << 24) / 1.5e-6)
    assert row["link_share"] is None


@pytest.mark.parametrize(("dur_us", "is_known"), [(1, False), (4, False), (5, True), (1.5, True)])
def test_a_rate_of_a_few_whole_microseconds_is_not_known(dur_us: float, is_known: bool) -> None:
    b = TraceBuilder().memset(10, dur_us, 1 << 20, launch_us=5)
    (row,) = rows_of(b).values()
    assert (row["bytes_per_s"] is not None) is is_known


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (0, "under 4 KiB"),
        (4095, "under 4 KiB"),
        (4096, "4 to 64 KiB"),
        (1 << 20, "1 to 16 MiB"),
        ((1 << 28) - 1, "16 to 256 MiB"),
        (1 << 28, "256 MiB and more"),
    ],
)
def test_classes_of_size(size_bytes: int, said: str) -> None:
    b = TraceBuilder().memcpy("HtoD", 10, 100, size_bytes, launch_us=5)
    assert list(rows_of(b, "size")) == [f"host to device, pageable, {said}"]


def test_a_size_that_is_not_recorded_is_unknown() -> None:
    b = TraceBuilder()
    link = {"device": 0, "stream": 7, "correlation": b.call("hipMemcpyAsync", 1)}
    b.event(ph="X", cat="gpu_memcpy", name="CopyHostToDevice", pid=0, tid=7, ts=10, dur=5, args=link)
    ((name, row),) = rows_of(b, "size").items()
    assert name == "host to device, host, size not recorded"
    assert (row["bytes"], row["bytes_per_s"], row["link_share"], row["size"]) == (None, None, None, None)


def test_copies_by_line() -> None:
    rows = rows_of(copying(), "line")
    assert set(rows) == {
        "host to device, pageable, train.py:9",
        "host to device, pinned, train.py:9",
        "within the device, line not known",
        "set memory, line not known",
    }
    row = rows["host to device, pinned, train.py:9"]
    assert (row["file"], row["line"], row["function"]) == ("train.py", 9, "load")


def test_without_copies_or_lines_the_table_says_so() -> None:
    kernel_only = TraceBuilder().kernel(GEMM, 10, 5, launch_us=2)
    assert copies_table(Rank(kernel_only.trace()), "kind").notes == ("nothing is copied in the analysed time",)
    cpu = TraceBuilder(device=None).op("aten::mm", 0, 9)
    assert "ProfilerActivity.CUDA" in copies_table(Rank(cpu.trace()), "kind").notes[0]
    without_lines = copies_table(Rank(TraceBuilder().memcpy("HtoD", 10, 5, launch_us=2).trace()), "line")
    assert len(without_lines) == 0
    assert any("with_stack=True" in note for note in without_lines.notes)


@pytest.mark.corpus
@pytest.mark.parametrize("file", ["a100-ddp-control/rank3.json.gz", "mi300x-resnet-ddp.json.gz"])
@pytest.mark.parametrize("by", ["kind", "size", "line"])
def test_all_copies_of_real_traces_are_in_it(corpus: Path, file: str, by: str) -> None:
    rank = Rank(read_once(corpus / file))
    table: Table = copies_table(rank, by)
    if by == "line" and not len(rank.trace.frames):
        assert len(table) == 0
        return
    gpu = rank.trace.gpu
    items = (gpu.kind != KERNEL) & rank.in_window
    assert sum(row["window_ns"] for row in table.rows) == gpu.dur_ns[items].sum()
    assert sum(row["window_count"] for row in table.rows) == items.sum()
    assert all(row["exposed_ns"] <= row["step_ns"] + 1 for row in table.rows)
