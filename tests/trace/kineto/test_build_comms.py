"""What events say of collectives, and of grids, as columns of a Trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfdoctor.testing import TraceBuilder, collective
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.kineto.merged_pids import RANK_STRIDE
from perfdoctor.trace.tables.split_ranks import split_ranks

pytestmark = pytest.mark.usefixtures("each_reader")
Rows = Callable[[Trace, str], list[dict[str, Any]]]

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ARGUMENTS = collective("allreduce", 640, 1280, "BFloat16", range(4), "2", "tp", sequence=17)
COLUMNS = {
    "collective": "allreduce",
    "dtype": "BFloat16",
    "group": "2",
    "description": "tp",
    "ranks": "[0, 1, 2, 3]",
    "group_size": 4,
    "in_elements": 640,
    "out_elements": 1280,
    "sequence": 17,
}


def test_a_trace_without_collectives_has_no_rows() -> None:
    trace = TraceBuilder().op("aten::mm", 0, 9).kernel("k", 9, 1, launch_us=1).trace()
    assert len(trace.comms) == 0
    assert trace.events == 3


def test_the_kernel_and_its_op_both_speak(rows: Rows) -> None:
    b = TraceBuilder().op("c10d::allreduce_", 0, 50).op("record_param_comms", 10, 20, comm=ARGUMENTS)
    trace = b.kernel(NCCL, 40, 90, launch_us=15, comm=ARGUMENTS).trace()
    assert rows(trace, "comms") == [COLUMNS | {"gpu": 0, "op": 1}, COLUMNS | {"gpu": -1, "op": 1}]
    assert trace.events == 4  # a table beside those of events


def test_the_kernel_has_it_of_its_op_where_it_says_nothing_itself(rows: Rows) -> None:
    b = TraceBuilder().op("record_param_comms", 10, 20, comm=ARGUMENTS)
    trace = b.kernel("first", 5, 1, launch_us=2).kernel(NCCL, 40, 90, launch_us=15).trace()
    assert rows(trace, "comms") == [COLUMNS | {"gpu": 1, "op": 0}, COLUMNS | {"gpu": -1, "op": 0}]


def test_what_the_kernel_says_goes_before_what_its_op_says() -> None:
    b = TraceBuilder().op("record_param_comms", 10, 20, comm=collective("coalesced", 0))
    trace = b.kernel(NCCL, 40, 90, launch_us=15, comm=collective("send", 7)).trace()
    assert [trace.text(code) for code in trace.comms.collective.tolist()] == ["send", "coalesced"]
    assert trace.comms.in_elements.tolist() == [7, 0]


def test_a_copy_that_another_op_makes_within_the_collective_is_no_part_of_it() -> None:
    b = TraceBuilder().op("record_param_comms", 10, 80, comm=ARGUMENTS).op("aten::copy_", 20, 20)
    trace = b.memcpy("DtoD", 100, 5, launch_us=25).kernel(NCCL, 110, 5, launch_us=60).trace()
    assert trace.comms.gpu.tolist() == [1, -1]


def test_a_collective_on_the_cpu_has_its_op_only(rows: Rows) -> None:
    b = (
        TraceBuilder(device=None)
        .range("gloo:all_reduce", 12, 5, thread=2)
        .op("record_param_comms", 10, 2, comm=ARGUMENTS)
    )
    assert rows(b.trace(), "comms") == [COLUMNS | {"gpu": -1, "op": 0}]


def test_an_annotation_among_the_ops_makes_no_row() -> None:
    trace = TraceBuilder().op("nccl:all_reduce", 10, 2, comm=ARGUMENTS).op("aten::mm", 20, 2).trace()
    assert (len(trace.ranges), len(trace.comms)) == (1, 0)


def test_rows_keep_the_order_of_time_whatever_the_order_of_the_file() -> None:
    b = TraceBuilder()
    for start in (50, 10, 30):
        b.op("record_param_comms", start, 5, comm=collective(in_elements=start))
        b.kernel(NCCL, start + 100, 5, launch_us=start + 1, comm=collective(in_elements=start))
        b.kernel("other", start + 106, 1)
    comms = b.trace().comms
    assert comms.gpu.tolist() == [0, 2, 4, -1, -1, -1]
    assert comms.op.tolist() == [0, 1, 2, 0, 1, 2]
    assert comms.in_elements.tolist() == [10, 30, 50, 10, 30, 50]


@pytest.mark.parametrize(
    ("metadata", "column", "value"),
    [
        ({"Collective name": None}, "collective", []),
        ({"Collective name": 7}, "collective", ["7"]),
        ({"Collective name": ["a", 1]}, "collective", ['["a",1]']),
        ({"Collective name": "a", "Process Group Ranks": [0, 1]}, "ranks", ["[0,1]"]),
        ({"Collective name": "a", "Process Group Name": None}, "group", [None]),
        ({"Collective name": "a", "In msg nelems": "12"}, "in_elements", [12]),
        ({"Collective name": "a", "Seq": 1.5}, "sequence", [-1]),
        ({"dtype": "Float", "Group size": 4}, "dtype", []),
    ],
)
def test_irregular_metadata(metadata: dict[str, object], column: str, value: list[object], rows: Rows) -> None:
    trace = TraceBuilder().op("plain", 0, 1, comm=ARGUMENTS).op("other", 2, 1, comm=metadata).op("mute", 4, 1).trace()
    assert [row[column] for row in rows(trace, "comms")] == [COLUMNS[column], *value]


def test_each_rank_of_a_merged_file_keeps_its_own(rows: Rows) -> None:
    merged: list[dict[str, Any]] = []
    for rank in range(2):
        b = TraceBuilder(rank=rank).op("aten::mm", 0, 1)
        b.op("record_param_comms", 10, 20, comm=ARGUMENTS | {"Seq": rank}).kernel("k", 5, 1, launch_us=2)
        b.kernel(NCCL, 40 - rank, 90, launch_us=15, comm=ARGUMENTS | {"Seq": rank})
        events = b.to_dict()["traceEvents"]
        merged += [event | {"pid": event["pid"] + rank * RANK_STRIDE} for event in events]
    whole = TraceBuilder()
    for event in merged:
        whole.event(**event)
    own = split_ranks(whole.trace())
    assert len(own) == 2
    for rank, trace in enumerate(own):
        metadata = COLUMNS | {"sequence": rank}
        assert rows(trace, "comms") == [metadata | {"gpu": 1, "op": 1}, metadata | {"gpu": -1, "op": 1}]
        assert not trace.comms.gpu.flags.writeable


def test_columns_are_read_only() -> None:
    trace = TraceBuilder().op("record_param_comms", 10, 20, comm=ARGUMENTS).trace()
    assert not trace.comms.sequence.flags.writeable
    assert not trace.gpu.blocks.flags.writeable


@pytest.mark.parametrize(
    ("grid", "blocks"),
    [
        ("[8,1,1]", 8),
        ("[2147483647,65535,1]", 2147483647 * 65535),
        ("[2147483647, 65535, 65535]", -1),
        (" [ 3 ,\\n 5 ] ", 15),
        ("[0,1,1]", -1),
        ("[-2,-1,1]", -1),
        ("[]", -1),
        ("[1.0,2,2]", -1),
        ("[true]", -1),
        ("[[8,1,1]]", -1),
        ('"8"', -1),
        ("8", -1),
        ("null", -1),
        ('{"x":8}', -1),
    ],
)
def test_blocks_of_a_grid(grid: str, blocks: int) -> None:
    kernel = f'{{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":2,"args":{{"grid":{grid},"stream":7}}}}'
    trace = parse(f"[{kernel},{kernel}]".replace("\\n", "\n").encode(), "x")
    assert trace.gpu.blocks.tolist() == [blocks, blocks]
    assert trace.gpu.stream.tolist() == [7, 7]


def test_copies_and_kernels_without_a_grid_have_no_blocks() -> None:
    trace = TraceBuilder().kernel("k", 0, 1).memcpy("HtoD", 2, 1).kernel("k", 4, 1, grid=[8, 2, 1]).trace()
    np.testing.assert_array_equal(trace.gpu.blocks, [-1, -1, 16])


@pytest.mark.parametrize(
    ("call", "blocks"), [("hipLaunchKernel", 512), ("hipModuleLaunchKernel", 512), ("hipExtModuleLaunchKernel", -1)]
)
def test_a_grid_in_work_items_is_none_in_blocks(call: str, blocks: int) -> None:
    b = TraceBuilder(device="AMD Instinct MI300X")
    trace = b.kernel("k", 10, 5, correlation=b.call(call, 1), grid=[512, 1, 1]).kernel("k", 20, 5, grid=[3]).trace()
    assert trace.gpu.blocks.tolist() == [blocks, 3]
