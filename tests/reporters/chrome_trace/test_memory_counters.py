"""Counters of memory: to the byte, with the peak, and only of what the exported file recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfdoctor
from perfdoctor.charts.memory_timeline import choose_events
from perfdoctor.rank import Rank
from perfdoctor.reporters.chrome_trace.memory_counters import MemoryCounter, memory_counters
from perfdoctor.testing import TraceBuilder

MIB = 1 << 20


def training(device: int | None = None) -> TraceBuilder:
    """A forward pass that keeps 3 MiB for the backward pass, beside 1 MiB that it frees."""
    b = TraceBuilder(device=None).step(0, 1000)
    b.op("aten::linear", 100, 190, sequence=0)
    b.memory(120, 3 * MIB, 100, device=device).memory(150, MIB, 200, device=device)
    b.memory(160, -MIB, 200, device=device)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 400, 150, sequence=0)
    return b.memory(500, -3 * MIB, 100, device=device)


def of(builder: TraceBuilder, max_points: int = 1000) -> dict[str, MemoryCounter]:
    return {counter.name: counter for counter in memory_counters(Rank(builder.trace()), max_points)}


def test_each_event_is_a_point_to_the_byte() -> None:
    found = of(training())
    assert set(found) == {"CPU memory, allocated", "CPU memory by category"}
    allocated = found["CPU memory, allocated"]
    assert (allocated.time_ns / 1000).tolist() == [120, 150, 160, 500]
    assert allocated.series["bytes"].tolist() == [3 * MIB, 4 * MIB, 3 * MIB, 0]
    parts = found["CPU memory by category"].series
    assert {name: values.tolist() for name, values in parts.items()} == {
        "activations": [3 * MIB, 3 * MIB, 3 * MIB, 0],
        "temporaries": [0, MIB, 0, 0],
    }


def test_a_gpu_has_what_is_reserved_too() -> None:
    found = of(training(device=0))
    assert found["GPU 0 memory, reserved"].series["bytes"].tolist() == [1 << 30] * 4
    assert "GPU 0 memory by category" in found


def test_what_was_allocated_before_the_recording_is_a_part() -> None:
    counters = of(TraceBuilder(device=None).op("aten::mm", 0, 10).memory(5, -MIB, 7).memory(8, 2 * MIB, 9))
    # The totals of the builder count from 0: freeing more than that contradicts them, and nothing is drawn.
    assert counters == {}
    late = training().trace()
    late = replace(late, memory=replace(late.memory, allocated_bytes=late.memory.allocated_bytes + 5 * MIB))
    parts = next(each for each in memory_counters(Rank(late), 1000) if "category" in each.name).series
    assert parts["before_recording"].tolist() == [5 * MIB] * 4


@pytest.mark.parametrize("max_points", [2, 3, 1000])
def test_the_parts_add_up_at_every_point_that_is_kept(max_points: int) -> None:
    found = of(training(), max_points)
    allocated = found["CPU memory, allocated"].series["bytes"]
    assert sum(found["CPU memory by category"].series.values()).tolist() == allocated.tolist()  # type: ignore[union-attr]
    assert allocated.max() == 4 * MIB


def test_nothing_is_drawn_without_memory_worth_telling() -> None:
    assert of(TraceBuilder(device=None).op("aten::add", 0, 10).memory(5, 8, 1).memory(6, -8, 1)) == {}
    assert of(TraceBuilder().op("aten::mm", 0, 10).kernel("a", 50, 30)) == {}


def test_memory_of_an_evidence_window_is_not_drawn_in_another_file() -> None:
    plain, evidence = TraceBuilder().op("aten::mm", 0, 10).trace(), training().trace()
    rank = Rank(plain, evidence_trace=evidence)
    assert rank.memory
    assert list(memory_counters(rank, 1000)) == []


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(5, 40))
def test_few_events_are_kept_and_the_first_peak_is_among_them(values: list[int], max_points: int) -> None:
    allocated = np.array(values, np.int64)
    peak = int(allocated.argmax())
    shown = choose_events(allocated, np.arange(len(values)), peak, max_points)
    assert peak in shown
    assert (np.diff(shown) > 0).all()
    assert len(shown) <= max_points
    assert {0, len(values) - 1} <= set(shown.tolist())


def test_the_exported_trace_has_them(tmp_path: Path) -> None:
    training().write(tmp_path / "trace.json")
    perfdoctor.analyze(tmp_path / "trace.json").export_chrome_trace(tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    points = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "CPU memory, allocated"]
    assert points == [{"bytes": size} for size in (3 * MIB, 4 * MIB, 3 * MIB, 0)]
