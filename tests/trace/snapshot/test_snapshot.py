"""Snapshots become memory events that lead to their end; all else is one sentence, and nothing is executed."""

from __future__ import annotations

import base64
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfdoctor.errors import TraceError
from perfdoctor.trace import NONE, Trace, read
from perfdoctor.trace.tables.model import AllocatorSettings

FRAMES = [
    {"name": "c10::alloc()", "filename": "alloc.cpp", "line": 0},
    {"name": "forward", "filename": "/home/me/model.py", "line": 12},
]


def event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": FRAMES, "time_us": 5} | more


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": []} | more


def segment(*blocks: dict[str, Any], device: int = 0) -> dict[str, Any]:
    total = sum(each["size"] for each in blocks)
    return {"device": device, "address": blocks[0]["address"], "total_size": total, "blocks": list(blocks)}


def snapshot(*events: dict[str, Any], segments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"segments": segments, "device_traces": [list(events)]}


RING = snapshot(
    event("alloc", 100, 30),
    event("free_requested", 500, 40),
    event("free_completed", 500, 40),
    event("segment_alloc", 1000, 64),
    event("alloc", 500, 8),
    event("free_completed", 100, 30),
    segments=[segment(block(0, 200), block(200, 100, "inactive"), block(300, 400, "inactive"), block(500, 8))],
)


def read_value(tmp_path: Path, value: Any, name: str = "snapshot.pickle", protocol: int = 4) -> Trace:
    path = tmp_path / name
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return read(path)


def history(trace: Trace) -> list[tuple[int, int, int, int]]:
    memory = trace.memory
    columns = memory.bytes, memory.address, memory.allocated_bytes, memory.reserved_bytes
    return list(zip(*(each.tolist() for each in columns), strict=True))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_ring_that_lost_its_beginning_leads_to_its_end(tmp_path: Path, protocol: int) -> None:
    trace = read_value(tmp_path, RING, protocol=protocol)
    assert history(trace) == [
        (40, 500, 40, 644),  # freed in the history, so it was there before
        (200, 0, 240, 644),  # there at the end, and never allocated
        (30, 100, 270, 644),
        (-40, 500, 230, 644),
        (8, 500, 238, 708),
        (-30, 100, 208, 708),
    ]
    end = trace.memory_ends[0]
    assert (end.allocated_bytes, end.reserved_bytes, end.is_consistent, end.opening_events) == (208, 708, True, 2)
    assert trace.memory.time_ns.tolist() == [NONE, NONE, 5000, 5000, 5000, 5000]
    stack = trace.stacks[trace.memory.stack[2]]
    assert [trace.strings[each] for each in stack] == ["alloc.cpp(0): c10::alloc()", "/home/me/model.py(12): forward"]


def test_a_page_holds_the_same_snapshot(tmp_path: Path) -> None:
    encoded = base64.b64encode(pickle.dumps(RING, 4)).decode()
    page = f'\n<!DOCTYPE html><script>const local_files = [{{"name": "s", "base64": "{encoded}"}}]</script>'
    assert history(read_value(tmp_path, page.encode(), "page.html")) == history(read_value(tmp_path, RING))


def test_expandable_segments_are_mapped_in_pieces(tmp_path: Path) -> None:
    value = snapshot(
        event("segment_map", 0, 20),
        event("alloc", 0, 16),
        event("segment_map", 20, 20),
        event("alloc", 20, 20),
        event("free_completed", 20, 20),
        event("segment_unmap", 20, 20),
        segments=[segment(block(0, 16), block(16, 4, "inactive"))],
    )
    assert history(read_value(tmp_path, value)) == [(16, 0, 16, 20), (20, 20, 36, 40), (-20, 20, 16, 40)]


def test_segments_are_those_of_the_end_and_what_changed_on_the_way(tmp_path: Path) -> None:
    more = {"stream": 9, "segment_type": "small", "segment_pool_id": [0, 4], "is_expandable": True}
    value = snapshot(
        event("segment_map", 0, 20, stream=9),
        event("alloc", 0, 16, stream=9),
        event("segment_free", 300, 40),
        segments=[segment(block(0, 16), block(16, 4, "inactive")) | more, segment(block(90, 5, "inactive"))],
    )
    trace = read_value(tmp_path, value)
    end = trace.memory_ends[0]
    columns = ("address", "bytes", "place", "stream", "pool", "is_small", "is_expandable")
    rows = [
        list(zip(*(getattr(table, each).tolist() for each in columns), strict=True))
        for table in (end.segments, end.reservations)
    ]
    assert rows[0] == [(0, 20, 1, 9, 1, True, True), (90, 5, 1, 0, 0, False, False)]
    assert rows[1] == [(0, 20, 0, 9, 0, False, True), (300, -40, 1, 0, 0, False, False)]
    assert trace.memory.stream.tolist() == [9]
    assert not end.segments.address.flags.writeable
    assert end.settings == AllocatorSettings(expandable_segments=True)  # as one of the segments is


def test_settings_of_the_allocator(tmp_path: Path) -> None:
    divisions = {str(1 << i): 4 if i < 2 else 0 for i in range(16)}
    settings = {"max_split_size": 1 << 20, "garbage_collection_threshold": 0.8, "roundup_power2_divisions": divisions}
    trace = read_value(tmp_path, RING | {"allocator_settings": settings})
    assert trace.memory_ends[0].settings == AllocatorSettings(
        max_split_bytes=1 << 20, garbage_collection_threshold=0.8, roundup_power2_divisions=(4, 4, *(0,) * 14)
    )
    plain = {"max_split_size": -1, "garbage_collection_threshold": 0.0, "roundup_power2_divisions": {"1": 0}}
    assert read_value(tmp_path, RING | {"allocator_settings": plain}).memory_ends[0].settings == AllocatorSettings()


@pytest.mark.parametrize("settings", [{"max_split_size": -2}, {"roundup_power2_divisions": {"1": "x"}}, [1], 7])
def test_settings_of_another_kind_are_no_snapshot(tmp_path: Path, settings: Any) -> None:
    with pytest.raises(TraceError, match="no snapshot of PyTorch's allocator"):
        read_value(tmp_path, RING | {"allocator_settings": settings})


def test_each_device_has_its_own_history_and_a_request_may_fail(tmp_path: Path) -> None:
    oom = {"action": "oom", "size": 99, "device_free": 7, "stream": 0, "frames": FRAMES, "time_us": 6}
    value = {
        "segments": [segment(block(0, 16)), segment(block(0, 4), device=1)],
        "device_traces": [[], [event("alloc", 0, 4), oom]],
    }
    trace = read_value(tmp_path, value)
    assert trace.memory.device.tolist() == [0, 1, 1]
    assert trace.memory.requested_bytes.tolist() == [0, 0, 99]
    assert trace.memory_ends[1].free_bytes == 7
    assert trace.memory.allocated_bytes.tolist() == [16, 4, 4]


def test_blocks_of_old_versions_have_a_history_instead_of_frames(tmp_path: Path) -> None:
    old = {"size": 16, "state": "active_allocated", "history": [{"addr": 0, "real_size": 9, "frames": FRAMES}]}
    trace = read_value(tmp_path, [{"device": 0, "address": 64, "total_size": 16, "blocks": [old]}])
    assert history(trace) == [(16, 64, 16, 16)]
    assert trace.memory.stack.tolist() == [0]


@pytest.mark.parametrize(
    "events",
    [
        [event("alloc", 700, 8)],  # never freed, and not there at the end
        [event("alloc", 500, 9)],  # another size
        [event("alloc", 500, 8), event("alloc", 500, 8)],
        [event("alloc", 100, 9), event("free_completed", 100, 8)],
        [event("alloc", 100, 5000), event("free_completed", 100, 5000)],  # more than was reserved
    ],
)
def test_a_history_that_does_not_lead_to_the_end_is_inconsistent(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    trace = read_value(tmp_path, snapshot(*events, segments=RING["segments"]))
    assert not trace.memory_ends[0].is_consistent


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("was-executed",)


def shared_blocks() -> dict[str, Any]:
    blocks = [block(0, 1)] * 10_000
    return {"segments": [{"device": 0, "total_size": 1, "blocks": blocks}] * 10_000}


def nested(depth: int) -> Any:
    value: Any = ()
    for _ in range(depth):
        value = (value, value)
    return value


def cycle() -> dict[str, Any]:
    value: list[Any] = []
    value.append(value)
    return {"segments": value}


def laughs() -> Any:
    value: Any = []
    for _ in range(60):
        value = [value] * 9
    return value


HOSTILE: dict[str, Any] = {
    "a call": {"segments": [Runs()]},
    "a class": {"segments": [Path]},
    "a cycle": cycle(),
    "a depth": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    # {((...), (...)): 1}: Python hashes each of the 2**60 tuples in it
    "tuples of tuples as a key": b"\x80\x04})q\0"
    + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60))
    + b"K\1s.",
    "tuples of tuples as an action": snapshot({"action": nested(60)}, segments=[]),
    "lists of lists as a name": snapshot(
        event("alloc", 0, 1, frames=[{"name": laughs(), "filename": "", "line": 1}]), segments=[]
    ),
    "a far place in the memo": b"\x80\x03}r\xff\xff\xff\x7f.",
    "a long text": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fabc.",
    "long bytes": b"\x80\x05\x96" + b"\xff" * 6 + b"\0\0.",
    "a stack that is empty": b"\x80\x04u.",
    "one list in many places": shared_blocks(),
    "no snapshot": {"weights": [1, 2]},
    "no container": 5,
    "a size that is none": {"segments": [segment(block(0, 1)) | {"total_size": -5}]},
    "a size beyond all": {"segments": [segment(block(0, 1)) | {"total_size": 1 << 70}]},
    "a device beyond all": {"segments": [segment(block(0, 1)) | {"device": 1 << 40}]},
    "nothing allocated": snapshot(segments=[]),
    "cut short": pickle.dumps(RING, 4)[:100],
    "an old protocol": pickle.dumps({"segments": []}, 0),
    "a page of something else": b"<html><body></body></html>",
    "a page with something else": b'<html>"base64": "abc"</html>',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_all_else_is_one_sentence_and_nothing_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError) as refused:
        read_value(tmp_path, HOSTILE[name], "page.html" if "page" in name else "model.pickle")
    assert str(refused.value).count("\n") == 0
    assert len(str(refused.value)) < 400
    assert not (tmp_path / "was-executed").exists()


def test_damaged_bytes_are_read_or_refused(tmp_path: Path) -> None:
    good, chance = pickle.dumps(RING, 4), random.Random(7)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(2, len(data))] = chance.randrange(256)
        try:
            trace = read_value(tmp_path, bytes(data))
        except TraceError:
            continue
        memory = trace.memory
        assert np.array_equal(np.cumsum(memory.bytes[memory.device == 0]), memory.allocated_bytes[memory.device == 0])
