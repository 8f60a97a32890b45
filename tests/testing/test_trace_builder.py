"""TraceBuilder writes what a profiler writes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import read


def test_methods_chain_and_ids_link() -> None:
    b = TraceBuilder().step(0, 10).op("a", 0, 1).range("r", 0, 1).gpu_range("g", 0, 1).sync("Stream Sync", 0, 1)
    first, second = b.call("cudaLaunchKernel", 0), b.call("cudaLaunchKernel", 5)
    assert first != second
    trace = b.kernel("k", 9, 1, correlation=second).memset(12, 1, correlation=first).trace()
    assert trace.gpu.call.tolist() == [1, 0]


def test_an_item_without_a_launch_has_none() -> None:
    b = TraceBuilder().kernel("k", 9, 1)
    b.call("cudaLaunchKernel", 0)
    assert b.trace().gpu.call.tolist() == [-1]


def test_steps_are_counted_on_from_the_last_number() -> None:
    b = TraceBuilder().step(0, 1).step(1, 1).step(2, 1, number=7).step(3, 1)
    names = [event["name"] for event in b.to_dict()["traceEvents"]]
    assert names == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#7", "ProfilerStep#8"]


@pytest.mark.parametrize(
    ("pinned", "name"), [(False, "Memcpy HtoD (Pageable -> Device)"), (True, "Memcpy HtoD (Pinned -> Device)")]
)
def test_copies_have_the_names_of_the_profiler(pinned: bool, name: str) -> None:
    event = TraceBuilder().memcpy("HtoD", 0, 1, pinned=pinned).to_dict()["traceEvents"][0]
    assert (event["cat"], event["name"], event["args"]["bytes"]) == ("gpu_memcpy", name, 1 << 20)


def test_without_a_device_there_are_no_device_properties() -> None:
    whole = TraceBuilder(device=None).op("a", 0, 1).to_dict()
    assert whole.keys() == {"schemaVersion", "traceEvents"}
    assert TraceBuilder(rank=2, world_size=4).to_dict()["distributedInfo"] == {
        "backend": "nccl",
        "rank": 2,
        "world_size": 4,
    }


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_the_suffix_decides_the_compression_and_the_bytes_repeat(tmp_path: Path, name: str) -> None:
    b = TraceBuilder().op("aten::mm", 0, 1, shapes=[[1]])
    path = b.write(tmp_path / name)
    data = path.read_bytes()
    assert b.write(path).read_bytes() == data
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert json.loads(text) == b.to_dict()
    assert read(path).events == 1


def test_the_dict_is_a_copy() -> None:
    b = TraceBuilder().op("a", 0, 1)
    b.to_dict()["traceEvents"][0]["name"] = "b"
    assert b.to_dict()["traceEvents"][0]["name"] == "a"
