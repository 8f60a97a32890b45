"""The tables of kernels and ops: they add up, however they are grouped, and their figures are the trace's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_traces import read_once

from perfdoctor.errors import UsageError
from perfdoctor.rank import Rank
from perfdoctor.report.table import Table
from perfdoctor.tables.catalog import TABLES, build_table, check_table
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import KERNEL

GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, array<char*, 3ul> >(int)"
NODE = "autograd::engine::evaluate_function: AddmmBackward0"
TRACES = ("v100-legacy-workers0", "h100-timesformer-bf16", "a100-sam-bf16", "mi300x-resnet-ddp", "b300-decode-graph")


def training() -> TraceBuilder:
    """Two steps of 1 ms: a product of 200 us, an addition of 50 us, and its backward pass of 300 us."""
    trace = TraceBuilder()
    for step in (0, 1000):
        trace.step(step, 1000)
        trace.op("aten::addmm", step, 50, shapes=[[64], [512, 256], [256, 64]], types=["c10::BFloat16"] * 3)
        trace.kernel(GEMM, step + 60, 200, launch_us=step + 10)
        trace.op("aten::add", step + 60, 20, shapes=[[512, 64], [512, 64]], types=["float", "float"])
        trace.kernel(ADD, step + 270, 50, launch_us=step + 65)
        trace.op(NODE, step + 100, 100).op("aten::mm", step + 110, 50)
        trace.kernel(GEMM, step + 400, 300, launch_us=step + 120)
        trace.memcpy("HtoD", step + 800, 10, launch_us=step + 220)
    return trace


def table_of(trace: TraceBuilder, name: str = "kernels", by: str | None = None) -> Table:
    return build_table(Rank(trace.trace()), name, by)


def rows_by_name(table: Table) -> dict[object, dict[str, object]]:
    return {row["name"]: row for row in table.rows}


def test_a_kernel_has_its_time_a_step_and_its_work() -> None:
    row = rows_by_name(table_of(training()))[GEMM]
    assert (row["step_ns"], row["share"], row["count"]) == (500_000, 0.5, 2.0)
    assert (row["window_ns"], row["window_count"]) == (1_000_000, 4)
    assert (row["mean_ns"], row["max_ns"]) == (250_000, 300_000)
    assert (row["category"], row["tensor_core"], row["op"]) == ("gemm", "yes", "addmm backward")
    # Only addmm has shapes: its rate is over its own time.
    flops = 2 * 2 * 512 * 256 * 64
    assert row["flops"] == flops
    assert row["flops_per_s"] == pytest.approx(flops / 400e-6)
    assert row["peak_share"] == pytest.approx(max(flops / 312e12, row["bytes"] / 2.039e12) / 400e-6, rel=0.02)


def test_the_costliest_row_comes_first_and_copies_are_no_kernels() -> None:
    table = table_of(training())
    assert [row["name"] for row in table.rows] == [GEMM, ADD]
    assert table.sorted_by == "step_ns"


def test_shapes_and_types_are_written_as_people_do() -> None:
    rows = table_of(training(), by="shape").rows
    assert {(row["name"], row["shape"], row["dtype"]) for row in rows} == {
        (GEMM, "64, 512x256, 256x64", "bf16"),
        (GEMM, None, None),
        (ADD, "512x64, 512x64", "fp32"),
    }


def test_ops_have_their_calls_and_what_they_launch() -> None:
    rows = rows_by_name(table_of(training(), "ops"))
    assert {name: (row["step_ns"], row["count"], row["launches"]) for name, row in rows.items()} == {
        "addmm backward": (300_000, 1.0, 2),
        "addmm": (200_000, 1.0, 2),
        "add": (50_000, 1.0, 2),
        "Memcpy HtoD (Pageable -> Device)": (10_000, 1.0, 2),
    }
    assert rows["addmm backward"]["category"] == "gemm"


def test_lines_and_modules_come_from_what_was_recorded() -> None:
    trace = training()
    for step in (0, 1000):
        trace.range("@train.py:7 main", step, 55).range("@train.py:9 main", step + 58, 200)
    rows = table_of(trace, by="line").rows
    assert [(row["name"], row["file"], row["line"], row["window_ns"]) for row in rows] == [
        ("train.py:9", "train.py", 9, 700_000),
        ("train.py:7", "train.py", 7, 400_000),
    ]


@pytest.mark.parametrize("by", ["module", "line"])
@pytest.mark.parametrize("name", ["kernels", "ops"])
def test_what_was_not_recorded_has_no_rows_and_a_note(name: str, by: str) -> None:
    table = table_of(training(), name, by)
    assert not len(table)
    assert "with_stack=True" in table.notes[-1]


def test_without_kernels_the_table_says_what_to_record() -> None:
    table = table_of(TraceBuilder(device=None).step(0, 10).op("aten::mm", 0, 5))
    assert not table.rows
    assert "ProfilerActivity.CUDA" in table.notes[0]


@pytest.mark.parametrize("by", TABLES["ops"].by[:3])
def test_on_the_cpu_ops_add_up_to_the_window(by: str) -> None:
    trace = TraceBuilder(device=None).step(0, 1000).step(1000, 1000)
    trace.op("aten::addmm", 0, 300).op("aten::add", 500, 100).op("aten::add", 1500, 200)
    trace.range("Optimizer.step#SGD.step", 700, 100).op("aten::add_", 720, 50)
    rows = table_of(trace, "ops", by).rows
    assert sum(row["window_ns"] for row in rows) == 2_000_000
    if by == "name":
        found = {row["name"]: (row["window_ns"], row["window_count"], row["category"]) for row in rows}
        assert found == {
            "Python, outside of ops": (1_300_000, None, "python"),
            "addmm": (300_000, 1, "gemm"),
            "add": (300_000, 2, "elementwise"),
            "SGD.step": (100_000, 1, "optimizer"),
        }


items = st.lists(
    st.tuples(
        st.sampled_from([GEMM, ADD, "triton_poi_fused_add_0", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"]),
        st.integers(0, 2500),
        st.integers(0, 400),
        st.sampled_from(["aten::addmm", "aten::add_", NODE, None]),
        st.sampled_from([7, 20]),
    ),
    max_size=15,
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(items)
def test_every_grouping_has_the_same_total(recorded: list[tuple[str, int, int, str | None, int]]) -> None:
    trace = TraceBuilder().step(0, 1000).step(1000, 1000)
    for name, at, length, op, stream in recorded:
        if op is not None:
            trace.op(op, at, 20, thread=1 + stream)
        trace.kernel(name, at + 5, length, stream=stream, launch_us=at + 2, thread=1 + stream)
    rank = Rank(trace.trace())
    gpu = rank.trace.gpu
    whole = int(gpu.dur_ns[rank.in_window].sum()), int(rank.in_window.sum())
    for name in ("kernels", "ops"):
        for by in ("name", "shape", "category"):
            rows = build_table(rank, name, by).rows
            assert sum(row["window_ns"] for row in rows) == whole[0]
            assert sum(row["window_count" if name == "kernels" else "launches"] for row in rows) == whole[1]


@pytest.mark.corpus
@pytest.mark.parametrize("file", TRACES)
def test_real_traces_add_up(corpus: Path, file: str) -> None:
    rank = Rank(read_once(corpus / f"{file}.json.gz"))
    gpu = rank.trace.gpu
    kernels = rank.in_window & (gpu.kind == KERNEL)
    for name, mask in (("kernels", kernels), ("ops", rank.in_window)):
        for by in TABLES[name].by:
            table = build_table(rank, name, by)
            if not len(table):
                assert by in ("module", "line")
                continue
            assert sum(table.column("window_ns").values) == int(gpu.dur_ns[mask].sum())
            shares = list(table.column("share").values)
            assert all(0 <= share <= 1 for share in shares)
            peaks = [share for share in table.column("peak_share").values if share is not None]
            assert all(0 <= share <= 1.05 for share in peaks)
            assert np.all(np.diff(table.column("step_ns").values) <= 0)


@pytest.mark.parametrize(
    ("name", "by", "words"),
    [
        ("kernel", None, "there is no table 'kernel'; did you mean 'kernels'?"),
        ("zzz", None, "the tables are kernels, ops"),
        ("ops", "colour", "cannot be grouped by 'colour'; it can be grouped by name, shape"),
    ],
)
def test_a_table_that_does_not_exist_is_refused(name: str, by: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        check_table(name, by)
