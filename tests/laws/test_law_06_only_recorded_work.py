"""Law 6: only recorded work is judged.

A wait for work from before the recording is said, left out, and not priced. Launches whose work the recording lacks,
because it ended while the GPU was behind, hold no fix of the recorded work up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_traces import read_once
from recordings import list_recordings, name_recording

import perfdoctor
from perfdoctor.analysis.timeline import first_use
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.what_if import replay_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import unrecorded_tail
from perfdoctor.trace.tables.rows import GpuRows
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.trace.tables.trace_warnings import link_warnings
from perfdoctor.trace.tables.unrecorded_tail import find_unrecorded_tail

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ABOUT_RANKS = ("PD401", "PD402", "PD408", "PD409")
# By their raw files: an item that was launched at once starts after up to half of the recording.
WAITING = ("recordings/mi300x-sglang-prefilldecode",)


def recording(
    wait_us: float, *, blocks: bool = False, before_us: float = 0, launch_us: float = 8, products: int = 40
) -> TraceBuilder:
    """Products of 300 us in a full queue, whose first one starts `wait_us` after its launch.

    A copy of 60 bytes may block until it runs, `before_us` of other work may run before, and the first launch itself
    may take `launch_us`.
    """
    trace = TraceBuilder()
    if before_us:
        trace.kernel(GEMM, 0, before_us, launch_us=-10, stream=3)
    trace.kernel(GEMM, launch_us + wait_us, 300, correlation=trace.call("cudaLaunchKernel", 0, launch_us))
    at = launch_us + wait_us + 300
    if blocks:
        trace.memcpy("HtoD", at, 5, correlation=trace.call("cudaMemcpyAsync", launch_us + 5, at - launch_us))
        at += 5
    for number in range(products):
        trace.kernel(GEMM, at, 300, launch_us=launch_us + wait_us + 20 + 10 * number if blocks else 20 + 10 * number)
        at += 300
    return trace


def report_on(trace: TraceBuilder, folder: Path) -> Report:
    return perfdoctor.analyze(trace.write(folder / "trace.json"))


def unrecorded_ns(trace: TraceBuilder) -> int:
    return iv.total(Rank(trace.trace()).first_use.parts.get("unrecorded_work", iv.EMPTY))


def check_law(report: Report, wait_us: float) -> None:
    """The wait is left out, and no finding costs or saves any of it."""
    assert [part.cause for once in report.once for part in once.parts] == ["unrecorded_work"]
    assert sum(once.time_ns for once in report.once) >= 0.99 * wait_us * 1e3
    assert not any(once.is_first_run for once in report.once)
    for finding in report.findings:
        assert finding.cost_ns <= report.account[0].window_ns
        assert (finding.saving.high_ns or 0) < 0.1 * wait_us * 1e3, finding.title


@given(wait_us=st.floats(3_000, 900_000), blocks=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_wait_for_work_from_before_the_recording_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, wait_us: float, blocks: bool
) -> None:
    trace = recording(wait_us, blocks=blocks, before_us=3)
    check_law(report_on(trace, tmp_path_factory.mktemp("wait")), wait_us)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(recording(5), id="starts-at-once"),
        pytest.param(recording(800), id="wakes-the-gpu"),
        pytest.param(recording(20_000, before_us=15_000), id="waits-for-recorded-work"),
        pytest.param(recording(8, launch_us=30_000), id="the-launch-itself-takes-long"),
    ],
)
def test_other_waits_are_judged(trace: TraceBuilder) -> None:
    assert unrecorded_ns(trace) == 0


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(recording(20_000), id="long"),
        pytest.param(recording(2_000, before_us=3), id="short"),
        pytest.param(recording(400_000, blocks=True), id="a-copy-blocks"),
        pytest.param(recording(20_000, before_us=20), id="after-a-kernel-of-20-us"),
    ],
)
def test_waits_for_nothing_that_was_recorded_are_found(trace: TraceBuilder) -> None:
    assert unrecorded_ns(trace) > 0


# --- ranks that are late alike ----------------------------------------------------------------------------------------


def late_rank(number: int, ranks: int, cause: str, late_us: float, skew_us: float, alone: bool) -> TraceBuilder:
    """Five steps of a rank that something keeps from launching the second kernel, before an all-reduce of 800 us.

    All ranks are late in the same way, each `skew_us` after the one before it; or the first one `alone`.
    """
    trace, at = TraceBuilder(rank=number, world_size=ranks), 0.0
    for _ in range(5):
        begin, own_us = at, late_us if not alone or number == 0 else 0.0
        trace.kernel(GEMM, at + 20, 1000, launch_us=at + 5)
        if cause == "op" and own_us:
            trace.op("aten::cholesky_inverse", at + 40, own_us)
        elif cause == "allocation" and own_us:
            trace.op("aten::empty", at + 38, own_us + 4).call("cudaMalloc", at + 40, own_us)
        at += max(own_us, 1000) + 100
        trace.kernel("elementwise_add", at, 50, launch_us=at - 8)
        at += 60 + skew_us * number
        ends_us = begin + max(late_us, 1000) + 160 + skew_us * (ranks - 1) + 800
        trace.kernel(ALL_REDUCE, at, ends_us - at, launch_us=at - 6, stream=20)
        trace.kernel(GEMM, ends_us, 1000, launch_us=at + 10)
        at = ends_us + 1100
        trace.step(begin, at - begin)
    return trace


def report_on_ranks(folder: Path, cause: str, late_us: float, skew_us: float, ranks: int, *, alone: bool) -> Report:
    for number in range(ranks):
        late_rank(number, ranks, cause, late_us, skew_us, alone).write(folder / f"rank{number}.json")
    return perfdoctor.analyze(folder)


@given(
    cause=st.sampled_from(("op", "allocation", "pause")),
    late_us=st.floats(4_000, 60_000),
    skew_us=st.sampled_from((0.0, 40.0)),
    ranks=st.integers(2, 4),
)
@settings(max_examples=8, deadline=None)
def test_ranks_that_are_late_alike_do_not_wait_for_each_other(
    tmp_path_factory: pytest.TempPathFactory, cause: str, late_us: float, skew_us: float, ranks: int
) -> None:
    """The cause is what each of them does meanwhile, and it costs what it takes."""
    report = report_on_ranks(tmp_path_factory.mktemp("late"), cause, late_us, skew_us, ranks, alone=False)
    first = report.findings[0]
    assert first.rule == {"op": "PD103", "allocation": "PD107", "pause": "PD103"}[cause]
    assert first.cost_ns >= 0.9 * (late_us - 1000) * 1e3
    of_ranks_ns = max((each.cost_ns for each in report.findings if each.rule in ABOUT_RANKS), default=0)
    assert of_ranks_ns <= (800 + (ranks - 1) * skew_us + 20) * 1e3
    assert not any(each.rule == "PD401" for each in report.findings)


def test_others_do_wait_for_a_rank_that_is_late_alone(tmp_path: Path) -> None:
    report = report_on_ranks(tmp_path, "pause", 20_000, 0, 3, alone=True)
    (late,) = (each for each in report.findings if each.rule == "PD401")
    assert late.rank == 0
    assert late.cost_ns >= 15e6


def test_without_the_law_the_wait_is_sold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_use, "_UNRECORDED_NS", 1 << 60)
    with pytest.raises(AssertionError):
        check_law(report_on(recording(400_000, blocks=True, before_us=3), tmp_path), 400_000)


# --- work after the recording ----------------------------------------------------------------------------------------

# By their raw files: launches that come after all of which the work was recorded, hundreds of them.
CUT = ("recordings/l40-triforce-prefill",)


def cut_recording(unrecorded: int, *, recorded: int = 40, later_us: float = 0) -> TraceBuilder:
    """Products of 300 us that the CPU launches every 10 us, and launches whose work is not in the file.

    With `later_us` these come that long after the others: when the GPU is idle.
    """
    trace = TraceBuilder()
    for number in range(recorded):
        trace.kernel(GEMM, 20 + 300 * number, 300, launch_us=10 * number)
    for number in range(unrecorded):
        trace.call("cudaLaunchKernel", 10 * (recorded + number) + later_us, 5)
    return trace


def saved_ns(trace: TraceBuilder, share: float) -> float:
    """What the replay says when each product takes that share less."""
    rank = Rank(trace.trace())
    replay = replay_of(rank.trace, rank.steps, rank.window, iv.EMPTY)
    assert replay is not None
    products = GpuRows(rank.trace.gpu, np.arange(len(rank.trace.gpu)))
    return replay.step_ns() - replay.step_ns([(scale_durations(products, share), 1.0)])


@given(unrecorded=st.integers(10, 1100), share=st.floats(0.05, 0.9))
@settings(max_examples=25, deadline=None)
def test_launches_of_unrecorded_work_hold_no_fix_up(unrecorded: int, share: float) -> None:
    assert saved_ns(cut_recording(unrecorded), share) == pytest.approx(40 * 300_000 * share, rel=0.01)


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(cut_recording(0), id="none"),
        pytest.param(cut_recording(5), id="few"),
        pytest.param(cut_recording(30, later_us=12_000), id="the-gpu-was-not-behind"),
    ],
)
def test_other_launches_count(trace: TraceBuilder) -> None:
    assert not len(find_unrecorded_tail(trace.trace()))
    assert not any("behind" in warning for warning in link_warnings(trace.trace()))


def test_a_report_says_that_work_is_missing_at_the_end(tmp_path: Path) -> None:
    (of_trace,) = report_on(cut_recording(20), tmp_path).traces
    assert any("the work of the last 20 kernel launches is not in the file" in text for text in of_trace.warnings)


def test_without_the_law_launches_of_unrecorded_work_hold_a_fix_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unrecorded_tail, "_MIN_LAUNCHES", 1 << 30)
    assert saved_ns(cut_recording(1000), 0.9) < 0.5 * 40 * 300_000 * 0.9


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_recordings_end_amid_the_work_where_their_raw_files_do(path: Path) -> None:
    files = [path] if path.is_file() else sorted(path.rglob("*.json.gz"))[:2]
    found = [len(find_unrecorded_tail(trace)) > 0 for file in files for trace in split_ranks(read_once(file))]
    assert any(found) == name_recording(path).startswith(CUT)


@pytest.mark.corpus
@pytest.mark.parametrize("path", list_recordings(), ids=name_recording)
def test_recordings_wait_for_unrecorded_work_where_their_raw_files_do(path: Path) -> None:
    files = [path] if path.is_file() else sorted(path.rglob("*.json.gz"))[:2]
    ranks = (Rank(trace) for file in files for trace in split_ranks(read_once(file)))
    found = ["unrecorded_work" in rank.first_use.parts for rank in ranks]
    assert any(found) == name_recording(path).startswith(WAITING)
