"""A file that merges ranks becomes one trace a rank, the same as the files that were merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_traces import read_once

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.kineto.merged_pids import RANK_STRIDE
from perfdoctor.trace.tables.split_ranks import ranks_in, split_ranks
from perfdoctor.trace.tables.steps import find_steps

Rows = Callable[[Trace, str], list[dict[str, Any]]]


def rank(number: int, steps: int = 3) -> TraceBuilder:
    """One rank of a small run: the same ids in each, other times."""
    b = TraceBuilder(device=None)
    for step in range(steps):
        at = 1000 * step + 10 * number
        outer = b.frame("train.py(3): step", at, 900)
        b.frame("train.py(9): forward", at + 1, 500, parent=outer)
        b.step(at, 950).op("aten::linear", at + 5, 90).op("aten::mm", at + 10, 70)
        b.kernel("sgemm", at + 100, 300 + number, launch_us=at + 20).gpu_range("ProfilerStep#0", at, 900)
        b.memcpy("DtoH", at + 500, 10, launch_us=at + 450).sync("Stream Sync", at + 480, 40, stream=7)
    return b


def merge(*builders: TraceBuilder) -> Trace:
    """What tools that merge the files of ranks write."""
    whole = TraceBuilder(device=None)
    for number, builder in enumerate(builders):
        for event in builder.to_dict()["traceEvents"]:
            whole.event(**event | {"pid": event["pid"] + RANK_STRIDE * number})
    return parse(whole.to_bytes(), "merged.json")


@pytest.fixture(scope="module")
def merged() -> Trace:
    return merge(rank(0), rank(1), rank(2))


TABLES = ["gpu", "calls", "ops", "ranges", "gpu_ranges", "frames", "syncs"]


@pytest.mark.parametrize("table", TABLES)
def test_each_rank_reads_as_its_own_file_did(merged: Trace, rows: Rows, table: str) -> None:
    for number, own in enumerate(split_ranks(merged)):
        alone = [row | {"thread": None, "process": None} for row in rows(rank(number).trace(), table)]
        found = [row | {"thread": None, "process": None} for row in rows(own, table)]
        assert found == alone
        assert found


def test_ranks_have_their_numbers_and_share_the_strings(merged: Trace) -> None:
    ranks = split_ranks(merged)
    assert [r.rank for r in ranks] == [0, 1, 2] == list(ranks_in(merged))
    assert all(r.strings is merged.strings and r.threads is merged.threads for r in ranks)
    assert sum(r.events for r in ranks) == merged.events
    assert {find_steps(r).count for r in ranks} == {3}


def test_a_split_trace_is_still_a_value(merged: Trace) -> None:
    own = split_ranks(merged)[1]
    assert not any(getattr(t, column.name).flags.writeable for t in own.tables for column in fields(t))


def test_the_file_warns_of_its_ranks_and_the_ranks_do_not(merged: Trace) -> None:
    assert merged.warnings == ("the file holds 3 ranks merged into one; they are analysed as one",)
    assert [r.warnings for r in split_ranks(merged)] == [(), (), ()]


def test_a_warning_about_links_goes_to_the_rank_it_is_about() -> None:
    late = rank(1).kernel("orphan", 5000, 10, correlation=99)
    first, second = split_ranks(merge(rank(0), late))
    assert first.warnings == ()
    assert len(second.warnings) == 1
    assert "1 of 7 GPU items have no launching call" in second.warnings[0]


def test_a_file_of_one_rank_is_left_alone() -> None:
    trace = rank(0).trace()
    assert split_ranks(trace) == (trace,)
    assert (trace.processes, ranks_in(trace)) == ((), (0,))


def test_a_trace_without_processes_is_left_alone() -> None:
    # As another reader than ours may make it.
    trace = rank(0).trace()
    bare = replace(trace, gpu=replace(trace.gpu, process=np.empty(0, np.int32)))
    assert split_ranks(bare) == (bare,)


def test_threads_of_no_rank_are_left_out(merged: Trace) -> None:
    nobody = replace(merged, processes=tuple(-1 if p == 1 else p for p in merged.processes))
    nobody = replace(nobody, gpu=replace(nobody.gpu, process=np.where(nobody.gpu.process == 1, -1, nobody.gpu.process)))
    assert [r.rank for r in split_ranks(nobody)] == [0, 2]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_no_event_is_lost_or_doubled(steps: list[int]) -> None:
    whole = merge(*(rank(number, count) for number, count in enumerate([*steps, 1])))
    parts = split_ranks(whole)
    assert len(parts) == sum(count > 0 for count in steps) + 1
    for table in TABLES:
        starts = np.concatenate([getattr(part, table).start_ns for part in parts])
        assert sorted(starts.tolist()) == getattr(whole, table).start_ns.tolist()
    for part in parts:
        linked = part.gpu.call >= 0
        assert linked.all()
        assert (part.calls.correlation[part.gpu.call] == part.gpu.correlation).all()


@pytest.mark.corpus
def test_a_real_merged_file_is_four_ranks(corpus: Path) -> None:
    whole = read_once(corpus / "mi-merged-4pids.json.gz")
    ranks = split_ranks(whole)
    assert [(r.rank, len(r.gpu), find_steps(r).count) for r in ranks] == [
        (0, 4095, 3),
        (1, 4064, 3),
        (2, 4064, 3),
        (3, 4064, 3),
    ]
    assert sum(r.events for r in ranks) == whole.events
    assert all(not r.warnings for r in ranks)
