"""Real traces: every one is read, and its numbers are those counted when they were collected."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from real_traces import read_once

from perfdoctor.trace import KERNEL, Trace
from perfdoctor.trace.tables.nesting import parents
from perfdoctor.trace.tables.steps import find_steps

pytestmark = pytest.mark.corpus


def early(trace: Trace) -> int:
    """Kernels that start before their launch."""
    rows = np.flatnonzero((trace.gpu.kind == KERNEL) & (trace.gpu.call >= 0))
    return int((trace.gpu.start_ns[rows] < trace.calls.start_ns[trace.gpu.call[rows]]).sum())


def unlaunched(trace: Trace) -> int:
    """Kernels without a launch in the file."""
    return int(((trace.gpu.kind == KERNEL) & (trace.gpu.call < 0)).sum())


def test_every_trace_is_read_with_all_its_kernels(corpus: Path) -> None:
    with (corpus / "MANIFEST.csv").open(newline="") as manifest:
        listed = list(csv.DictReader(manifest))
    assert len(listed) > 30
    for entry in listed:
        trace = read_once(corpus / entry["file"])
        assert (int((trace.gpu.kind == KERNEL).sum()), trace.dropped) == (int(entry["kernels"]), 0), entry["file"]
        assert trace.complete
        assert (trace.device.name or "") == entry["gpu"]
        assert_consistent(trace)


def assert_consistent(trace: Trace) -> None:
    for table in trace.tables:
        assert (table.end_ns >= table.start_ns).all()
        assert (np.diff(table.start_ns) >= 0).all()
    linked = trace.gpu.call >= 0
    assert (trace.calls.correlation[trace.gpu.call[linked]] == trace.gpu.correlation[linked]).all()
    inner = np.flatnonzero(trace.ops.parent >= 0)
    outer = trace.ops.parent[inner]
    assert (trace.ops.start_ns[outer] <= trace.ops.start_ns[inner]).all()
    assert (trace.ops.thread[outer] == trace.ops.thread[inner]).all()
    comms = trace.comms
    assert (np.diff(comms.gpu[comms.gpu >= 0]) > 0).all()
    assert (comms.op[comms.gpu < 0] >= 0).all()


@pytest.mark.parametrize(
    ("file", "items", "ops", "elements", "group_size"),
    [
        ("a100-nccl-config/rank0.json.gz", 21, 27, 76_830_615, 2),
        ("b200-eager.json.gz", 1, 1, 25_136, 8),
        ("mi-merged-4pids.json.gz", 84, 108, 285_193_260, 4),
        ("v100-ns-resolution/rank0.json.gz", 0, 45, None, None),
        ("v100-ddp-test/rank1.json.gz", 0, 0, None, None),
    ],
)
def test_collectives_are_those_that_the_file_speaks_of(
    corpus: Path, file: str, items: int, ops: int, elements: int | None, group_size: int | None
) -> None:
    comms = read_once(corpus / file).comms
    on_gpu = comms.gpu >= 0
    assert (int(on_gpu.sum()), int((~on_gpu).sum())) == (items, ops)
    assert (comms.op >= 0).all()
    if items:
        assert int(comms.in_elements[on_gpu].sum()) == elements
        assert set(comms.group_size[on_gpu].tolist()) == {group_size}


@pytest.mark.parametrize(
    ("file", "numbered", "largest"),
    [
        ("mi300x-resnet-ddp.json.gz", 1344, 1349),
        ("a100-ddp-control/rank3.json.gz", 11_556, 452_452),
        ("mi-merged-4pids.json.gz", 12_735, 2820),
        ("gtx1650-clock-skew.json.gz", 200, 263),
        ("h100-timesformer-bf16.json.gz", 0, -1),  # inference
        ("v100-bare-list-workers0.json.gz", 0, -1),  # older than these numbers
    ],
)
def test_sequence_numbers_are_those_of_the_file(corpus: Path, file: str, numbered: int, largest: int) -> None:
    sequence = read_once(corpus / file).ops.sequence
    assert (int((sequence >= 0).sum()), int(sequence.max())) == (numbered, largest)


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("h100-qwen-bf16.json.gz", 1465),
        ("mi300x-resnet-ddp.json.gz", 1071),  # of 2,995: the others are launched by work items, or in graphs
        ("v100-legacy-workers0.json.gz", 9329),
        ("mi-merged-4pids.json.gz", 0),
    ],
)
def test_grids_are_known_where_they_are_recorded(corpus: Path, file: str, known: int) -> None:
    assert int((read_once(corpus / file).gpu.blocks > 0).sum()) == known


@pytest.mark.parametrize(
    ("file", "kernels_before_their_launch", "kernels_without_launch"),
    [
        ("a100-negative-queue/rank0.json.gz", 0, 705),
        ("h100-qwen-bf16.json.gz", 0, 436),
        ("mi300x-resnet-ddp.json.gz", 0, 757),
        ("v100-resnet18-2ranks/rank1.json.gz", 176, 0),
        ("gtx1650-clock-skew.json.gz", 95, 0),
        ("a100-ddp-control/rank3.json.gz", 0, 0),
    ],
)
def test_links_are_as_counted_by_others(
    corpus: Path, file: str, kernels_before_their_launch: int, kernels_without_launch: int
) -> None:
    trace = read_once(corpus / file)
    assert (early(trace), unlaunched(trace)) == (kernels_before_their_launch, kernels_without_launch)


@pytest.mark.parametrize(
    ("file", "vendor"),
    [
        ("mi250-minitoy.json.gz", "amd"),
        ("mi-merged-4pids.json.gz", "amd"),
        ("sampled-w128/rank0.json.gz", "nvidia"),
        ("v100-bare-list-workers0.json.gz", "nvidia"),
        ("cpu-only-rank34.json.gz", None),
    ],
)
def test_the_vendor_is_known_where_the_device_name_is_not(corpus: Path, file: str, vendor: str | None) -> None:
    assert read_once(corpus / file).vendor == vendor


def test_frames_nest_in_time_as_their_ids_say(corpus: Path) -> None:
    frames = read_once(corpus / "h100-timesformer-bf16.json.gz").frames
    assert len(frames) > 40_000
    assert (parents(frames.start_ns, frames.end_ns, frames.thread) == frames.parent).all()


@pytest.mark.parametrize(
    ("file", "source", "count", "median_ms"),
    [
        ("a100-negative-queue/rank0.json.gz", "annotated", 5, 216.2),
        ("mi300x-resnet-ddp.json.gz", "annotated", 3, 19.0),
        ("v100-ddp-test/rank1.json.gz", "annotated", 6, 116.9),
        ("v100-bare-list-workers0.json.gz", "annotated", 6, 211.7),
        ("v100-legacy-workers0.json.gz", "inferred", 4, 164.6),
        ("v100-legacy-workers4.json.gz", "inferred", 4, 118.1),
        ("mi300x-resnet18-ddp.json.gz", "inferred", 4, 1041.5),
        ("a100-sam-fp32.json.gz", "none", 0, None),
        ("b300-decode-graph.json.gz", "none", 0, None),
    ],
)
def test_steps_are_found(corpus: Path, file: str, source: str, count: int, median_ms: float | None) -> None:
    steps = find_steps(read_once(corpus / file))
    assert (steps.source, steps.count) == (source, count)
    assert (steps.median_ns and round(steps.median_ns / 1e6, 1)) == median_ms


@pytest.mark.parametrize(
    "file", ["a100-negative-queue/rank0.json.gz", "mi300x-resnet-ddp.json.gz", "v100-ddp-test/rank1.json.gz"]
)
def test_steps_are_even_once_the_backlog_is_taken_off(corpus: Path, file: str) -> None:
    # With the backlog in the first step it is 0.25, 0.49 and 0.12.
    variation = find_steps(read_once(corpus / file)).variation
    assert variation is not None
    assert variation < 0.03
