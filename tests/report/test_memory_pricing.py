"""Findings on memory by the bytes that they save: alone and in turn, and what is said where memory is no limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recorded_allocator import Request, SnapshotBuilder

import perfdoctor
from perfdoctor.memory.device_memory import DeviceMemory
from perfdoctor.memory.memory_edits import MemoryEdit, change_settings
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.memory_pricing import is_limit, price_memory
from perfdoctor.reporters.format_values import format_saved_bytes
from perfdoctor.savings.saved_bytes import SavedBytes
from perfdoctor.savings.saving import Saving
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.model import AllocatorSettings


def memory_of(*tensors: tuple[int, int, int], device: int | None = None, total: int | None = None) -> DeviceMemory:
    b = TraceBuilder(device=None).op("aten::add", 0, 1)
    if total is not None:
        b.header(deviceProperties=[{"id": 0, "name": "NVIDIA A100", "totalGlobalMem": total}])
    events = []
    for number, (made, freed, size) in enumerate(tensors):
        events += [(made, size, number), (freed, -size, number)]
    for at, size, address in sorted(events):
        b.memory(at, size, 100 + address, device=device)
    [memory] = Rank(b.trace()).memory
    return memory


def finding(memory: DeviceMemory, rule: str, place: int, *, costs_time: bool = False) -> Finding:
    rows = np.array([place], np.int64)
    allocations = memory.allocations
    columns = rows, allocations.bytes[rows], allocations.begins[rows], allocations.ends[rows]
    edit = MemoryEdit(0, *columns, costs_time=costs_time)
    return Finding(rule, "name", rule, 0, None, "info", Saving(), "Do it.", memory_edit=edit)


def test_two_peaks_of_nearly_one_height() -> None:
    memory = memory_of((0, 5, 1000), (10, 15, 900))
    first, second = price_memory([finding(memory, "PD704", 1), finding(memory, "PD703", 0)], [memory])
    assert (first.rule, second.rule) == ("PD703", "PD704")
    assert first.saved_bytes is not None
    assert second.saved_bytes is not None
    assert (first.saved_bytes.expected, first.saved_bytes.alone) == (100, 100)
    assert (second.saved_bytes.expected, second.saved_bytes.alone) == (900, 0)


def test_other_settings_of_the_allocator_save_of_what_is_reserved() -> None:
    # 40 and 60 MiB one after the other: 100 are reserved, and 60 in pages. Then a setting gives nothing of 40 alone.
    [memory] = Rank(SnapshotBuilder([Request(40 << 20), 0, Request(60 << 20), 0]).trace()).memory
    expandable = change_settings(0, AllocatorSettings(expandable_segments=True))
    larger = finding(memory, "PD703", 1)
    other = Finding("PD706", "name", "PD706", 0, None, "info", Saving(), "Do it.", memory_edit=expandable)
    [alone] = price_memory([other], [memory])
    assert alone.saved_bytes == SavedBytes(*(40 << 20,) * 4, "reserved")
    assert alone.severity == "high"
    first, second = price_memory([larger, other], [memory])
    assert (first.rule, first.saved_bytes) == ("PD706", alone.saved_bytes)
    assert second.saved_bytes == SavedBytes(*(20 << 20,) * 4)
    assert format_saved_bytes(alone.saved_bytes) == "lowers what is reserved by 41.9 MB"


def test_what_costs_time_saves_twice_as_much_or_comes_later() -> None:
    memory = memory_of((0, 5, 1000), (1, 5, 600))
    costly, free = finding(memory, "PD701", 0, costs_time=True), finding(memory, "PD703", 1)
    assert [each.rule for each in price_memory([costly, free], [memory])] == ["PD703", "PD701"]
    memory = memory_of((0, 5, 1000), (1, 5, 400))
    costly, free = finding(memory, "PD701", 0, costs_time=True), finding(memory, "PD703", 1)
    assert [each.rule for each in price_memory([costly, free], [memory])] == ["PD701", "PD703"]


def test_what_lowers_no_peak_is_left_out_and_what_is_not_on_memory_stays() -> None:
    memory = memory_of((0, 5, 1000), (10, 15, 100))
    other = Finding("PD101", "name", "loader", 0, None, "info", Saving(), "Do it.")
    assert price_memory([finding(memory, "PD703", 1), other], [memory]) == (other,)


def test_what_another_fix_has_taken_away_is_covered() -> None:
    memory = memory_of((0, 5, 1000), (10, 15, 10))
    first, second = price_memory([finding(memory, "PD703", 0), finding(memory, "PD701", 0)], [memory])
    assert first.covering_key is None
    assert second.covering_key == first.key


@pytest.mark.parametrize(
    ("device", "total", "limits"), [(None, None, False), (0, None, False), (0, 1 << 40, False), (0, 1 << 30, True)]
)
def test_memory_is_a_limit_where_it_is_nearly_all_of_the_gpu(
    device: int | None, total: int | None, limits: bool
) -> None:
    # The builder says that 1 GiB is reserved.
    memory = memory_of((0, 5, 1000), device=device, total=total)
    assert is_limit(memory) is limits
    [priced] = price_memory([finding(memory, "PD703", 0)], [memory])
    assert priced.severity == ("high" if limits else "info")
    # A request that failed says the same whatever the size.
    trace = memory.trace
    requested = trace.memory.requested_bytes.copy()
    requested[-1] = 5000
    failed = replace(memory, trace=replace(trace, memory=replace(trace.memory, requested_bytes=requested)))
    assert is_limit(failed)


@pytest.mark.corpus
def test_the_first_fix_of_real_snapshots(shared: Path) -> None:
    """As ../shared/memory/MANIFEST.csv has it, in GB; the fix and what it gives were worked out by another script."""

    truth = {
        "xl-train-128-2.7b.pickle": ("PD704", 13.525),
        "medium-train-1024.pickle": ("PD703", 10.14),
        "niu-fwdbwd-200.pickle": ("PD703", 0.3),
        "expandable-xl-fwd-cl512-fp32.pickle": ("PD701", 28.3),
    }
    for name, (rule, saved_gb) in truth.items():
        [first, *_] = perfdoctor.analyze(shared / "memory" / name).findings
        saved = first.saved_bytes
        assert first.rule == rule, name
        assert saved is not None
        assert saved.low <= saved_gb * 1e9 <= saved.high * 1.01, (name, saved)
    for name in ("state-only-docubox.pickle", "layoutediting-11g.pickle", "snapviewer-synthetic.pickle"):
        assert not perfdoctor.analyze(shared / "memory" / name).findings
