"""[memory] events become rows of `Trace.memory`, to both readers alike, and change nothing else of a trace."""

from __future__ import annotations

from typing import Any

import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import NONE, Trace

pytestmark = pytest.mark.usefixtures("each_reader")


def rows(trace: Trace) -> list[dict[str, Any]]:
    memory = trace.memory
    names = ("time_ns", "bytes", "requested_bytes", "address", "allocated_bytes", "reserved_bytes", "device")
    return [{name: int(getattr(memory, name)[row]) for name in names} for row in range(len(memory))]


def test_allocations_and_frees_are_read_in_order_of_time() -> None:
    b = TraceBuilder().op("aten::mm", 0, 10)
    trace = (
        b.memory(5.125, 512, 4096, device=0).memory(7, -512, 4096, device=0).memory(6, 1, 99).memory(8, -1, 99).trace()
    )
    assert [(each["time_ns"], each["bytes"], each["address"], each["device"]) for each in rows(trace)] == [
        (5125, 512, 4096, 0),
        (6000, 1, 99, NONE),
        (7000, -512, 4096, 0),
        (8000, -1, 99, NONE),
    ]
    assert [each["allocated_bytes"] for each in rows(trace)] == [512, 1, 0, 0]
    assert trace.memory.device_type.tolist() == [1, 0, 1, 0]
    assert [trace.threads[each] for each in trace.memory.thread.tolist()] == [trace.threads[trace.ops.thread[0]]] * 4


def test_they_are_no_events_of_time() -> None:
    plain = TraceBuilder().op("aten::mm", 10, 10)
    with_memory = TraceBuilder().op("aten::mm", 10, 10).memory(1, 512, 7).memory(90, -512, 7)
    assert (with_memory.trace().events, with_memory.trace().extent_ns) == (
        plain.trace().events,
        plain.trace().extent_ns,
    )


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 1),
        ({"ph": "X", "dur": 1}, 0),  # as nobody writes it
        ({"name": "another instant"}, 0),
        ({"cat": "cpu_op"}, 0),
        ({"ts": "soon"}, 0),
        ({"dur": "long"}, 1),  # instants have no duration
        ({"args": {"Bytes": 8, "Device Type": 0, "Device Id": -1}}, 0),  # torch 1.8 wrote no totals
        ({"args": None}, 0),
    ],
)
def test_what_is_no_such_event_is_passed_over(changed: dict[str, Any], count: int) -> None:
    event = TraceBuilder().memory(1, 8, 7).to_dict()["traceEvents"][0]
    assert len(TraceBuilder().op("aten::mm", 0, 1).event(**(event | changed)).trace().memory) == count


def test_a_request_without_room_changes_no_total() -> None:
    b = TraceBuilder().op("aten::mm", 0, 10).memory(1, 512, 7, device=0)
    event = b.to_dict()["traceEvents"][-1]
    failed = event | {"name": "[OutOfMemory]", "ts": 2, "args": event["args"] | {"Bytes": 4096}}
    row = rows(b.event(**failed).trace())[-1]
    assert (row["bytes"], row["requested_bytes"], row["allocated_bytes"]) == (0, 4096, 512)
