"""The columns of HTA's frames: small traces with known values, real ones against an independent reading of the JSON.

They need neither HTA nor pandas; `test_hta.py` compares with HTA where it is installed.
"""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_traces import read_once

from perfdoctor.integrations.hta_columns import Columns, Symbols, make_columns, select_steps, set_times
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.split_ranks import split_ranks


def columns_of(builder: TraceBuilder, symbols: Symbols | None = None, *, whole_us: bool = True) -> Columns:
    columns = make_columns(builder.trace(), Symbols() if symbols is None else symbols)
    set_times(columns, int(columns["start_ns"].min()), whole_us=whole_us)
    return columns


def names_of(columns: Columns, symbols: Symbols, name: str = "name") -> list[str]:
    texts = list(symbols)
    return [texts[number] for number in columns[name]]


def two_steps() -> TraceBuilder:
    return (
        TraceBuilder()
        .step(0, 100, number=7)
        .op("aten::mm", 10, 20, shapes=[[2, 3], [3, 4]], types=["float", "float"])
        .kernel("gemm", 40, 70, launch_us=15)
        .step(100, 100, number=8)
        .memcpy("HtoD", 150, 10, size_bytes=20_000, launch_us=120)
        .gpu_range("ProfilerStep#7", 40, 70)
    )


def test_links_go_both_ways() -> None:
    symbols = Symbols()
    columns = columns_of(two_steps(), symbols)
    names = names_of(columns, symbols)
    kernel, launch = names.index("gemm"), names.index("cudaLaunchKernel")
    assert columns["index_correlation"][kernel] == columns["index"][launch]
    assert columns["index_correlation"][launch] == columns["index"][kernel]
    assert columns["index_correlation"][names.index("aten::mm")] == -1


def test_the_first_event_can_be_linked_to() -> None:
    # HTA takes an index of 0 for "not recorded".
    columns = columns_of(TraceBuilder().kernel("k", 5, 5, launch_us=0))
    assert columns["index"].tolist() == [1, 2]
    assert columns["index_correlation"].tolist() == [2, 1]


def test_a_correlation_without_its_other_end_links_to_0() -> None:
    builder = TraceBuilder()
    builder.call("cudaStreamSynchronize", 0)
    assert columns_of(builder)["index_correlation"].tolist() == [0]


def test_of_several_kernels_of_a_call_each_links_to_it_and_it_to_the_last() -> None:
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 0)
    columns = columns_of(builder.kernel("a", 10, 5, correlation=graph).kernel("b", 20, 5, correlation=graph))
    assert columns["index_correlation"].tolist() == [3, 1, 1]


def test_synchronizations_are_linked_to_their_calls() -> None:
    builder = TraceBuilder()
    builder.call("cudaStreamSynchronize", 0, 50)
    columns = columns_of(builder.sync("Stream Sync", 1, 40, stream=7, correlation=1))
    assert columns["index_correlation"].tolist() == [2, 1]


def test_gpu_items_belong_to_the_iteration_that_launched_them() -> None:
    symbols = Symbols()
    builder = two_steps().kernel("late", 230, 10, launch_us=180).kernel("outside", 260, 10, launch_us=220)
    columns = columns_of(builder, symbols)
    iteration = dict(zip(names_of(columns, symbols), columns["iteration"].tolist(), strict=True))
    assert iteration["aten::mm"] == iteration["gemm"] == 7
    assert iteration["Memcpy HtoD (Pageable -> Device)"] == iteration["late"] == 8
    assert iteration["outside"] == -1


def test_the_default_stream_has_iterations_too() -> None:
    columns = columns_of(TraceBuilder().step(0, 100, number=3).kernel("k", 50, 10, stream=0, launch_us=5))
    assert columns["iteration"].tolist() == [3, 3, 3]


def test_fractions_are_rounded_inwards_and_no_duration_is_negative() -> None:
    builder = TraceBuilder().op("a", 0, 1).op("b", 10.2, 5.5).op("c", 20.3, 0.4)
    columns = columns_of(builder)
    assert columns["ts"].tolist() == [0, 11, 21]
    assert columns["dur"].tolist() == [1, 4, 0]
    assert columns["end"].tolist() == [1, 15, 21]


def test_fractions_stay_where_hta_is_told_not_to_round() -> None:
    columns = columns_of(TraceBuilder().op("a", 0.5, 1).op("b", 10.2, 5.5), whole_us=False)
    assert columns["ts"].tolist() == pytest.approx([0, 9.7])
    assert columns["dur"].tolist() == pytest.approx([1, 5.5])


def test_annotations_on_the_gpu_are_no_work() -> None:
    symbols = Symbols()
    columns = columns_of(two_steps(), symbols)
    marks = np.array(names_of(columns, symbols, "cat")) == "gpu_user_annotation"
    assert columns["stream"][marks].tolist() == columns["correlation"][marks].tolist() == [-1]


def test_arguments_have_a_default_in_other_events() -> None:
    symbols = Symbols()
    columns = columns_of(two_steps(), symbols)
    names = names_of(columns, symbols)
    op, copy = names.index("aten::mm"), names.index("Memcpy HtoD (Pageable -> Device)")
    assert columns["input_dims"][op] == [[2, 3], [3, 4]]
    assert columns["input_type"][op] == ["float", "float"]
    assert columns["input_strides"][op] == columns["input_dims"][copy] == "-1"
    assert columns["bytes"][copy] == 20_000
    assert columns["memory_bw_gbps"][copy] == pytest.approx(2.0)
    assert columns["bytes"][op] == -1
    assert columns["memory_bw_gbps"][op] == 0
    assert columns["external_id"][names.index("gemm")] == columns["external_id"][op] == 1


def test_calls_of_the_driver_have_their_category() -> None:
    symbols = Symbols()
    builder = TraceBuilder()
    builder.call("cuLaunchKernel", 0)
    builder.call("cudaLaunchKernel", 10)
    builder.call("hipLaunchKernel", 20)
    assert names_of(columns_of(builder, symbols), symbols, "cat") == ["cuda_driver", "cuda_runtime", "cuda_runtime"]


def test_ranks_share_the_symbols() -> None:
    symbols = Symbols()
    first = columns_of(TraceBuilder().op("a", 0, 1).op("b", 2, 1), symbols)
    second = columns_of(TraceBuilder().op("b", 0, 1).op("c", 2, 1), symbols)
    assert names_of(first, symbols) == ["a", "b"]
    assert names_of(second, symbols) == ["b", "c"]
    assert len(symbols) == 4  # and cpu_op


def test_what_a_synchronization_waits_for_is_kept() -> None:
    builder = TraceBuilder()
    record = builder.call("cudaEventRecord", 0)
    wait = builder.call("cudaStreamWaitEvent", 10)
    fields = {"stream": 7, "correlation": wait, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": record}
    builder.event(ph="X", cat="cuda_sync", name="Stream Wait Event", pid=0, tid=7, ts=12, dur=1, args=fields)
    columns = columns_of(builder)
    assert columns["wait_on_stream"].tolist() == [-1, -1, 20]
    assert columns["wait_on_cuda_event_record_corr_id"].tolist() == [-1, -1, record]


def kept_names(builder: TraceBuilder, *, include_last: bool = False) -> list[str]:
    symbols = Symbols()
    columns = columns_of(builder, symbols)
    kept = select_steps(columns, symbols, include_last=include_last)
    return [name for name, keep in zip(names_of(columns, symbols), kept, strict=True) if keep]


def test_the_last_step_is_left_out_with_what_it_launched() -> None:
    kept = kept_names(two_steps())
    assert "gemm" in kept
    assert "Memcpy HtoD (Pageable -> Device)" not in kept
    assert "ProfilerStep#8" not in kept


def test_the_last_step_stays_when_asked_for() -> None:
    builder = two_steps().op("afterwards", 300, 10)
    kept = kept_names(builder, include_last=True)
    assert "Memcpy HtoD (Pageable -> Device)" in kept
    assert "afterwards" not in kept


@pytest.mark.parametrize(
    "builder",
    [
        TraceBuilder().op("a", 0, 10).kernel("k", 20, 10, launch_us=5),
        TraceBuilder().step(0, 50, number=1).op("a", 0, 10).kernel("k", 20, 10, launch_us=5),
    ],
    ids=["no steps", "one step"],
)
def test_without_two_steps_everything_stays(builder: TraceBuilder) -> None:
    assert len(kept_names(builder)) == len(columns_of(builder)["index"])


def test_a_rank_without_marks_stays_whole() -> None:
    symbols = Symbols()
    make_columns(two_steps().trace(), symbols)
    columns = columns_of(TraceBuilder().op("a", 0, 10), symbols)
    assert select_steps(columns, symbols, include_last=False).all()


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    [
        "a100-event-sync.json.gz",
        "a100-nccl-config/rank0.json.gz",
        "b300-decode-graph.json.gz",
        "cpu-only-rank34.json.gz",
        "gp100-user-annotation.json.gz",
        "h100-bert-small-bf16.json.gz",
        "h100-transformer-steps.json.gz",
        "mi250-minitoy.json.gz",
        "mi300x-decode-graph.json.gz",
        "pg509-vit-graph-ns.json.gz",
        "rtx4090-llama-2ranks/rank1.json.gz",
        "v100-torchrec-4ranks/rank2.json.gz",
    ],
)
def test_rows_are_the_events_of_the_file(corpus: Path, name: str) -> None:
    (trace,) = split_ranks(read_once(corpus / name))
    symbols = Symbols()
    columns = make_columns(trace, symbols)
    set_times(columns, 0)
    assert Counter(rows_of(columns, symbols)) == Counter(rows_in_file(corpus / name))


def rows_of(columns: Columns, symbols: Symbols) -> list[tuple[Any, ...]]:
    texts = list(symbols)
    links = [texts[columns["name"][at - 1]] if at > 0 else at for at in columns["index_correlation"].tolist()]
    dims = [json.dumps(value) for value in columns["input_dims"]]
    numbers = (columns[key].tolist() for key in ("ts", "end", "stream", "correlation", "bytes"))
    return list(zip(*(names_of(columns, symbols, key) for key in ("cat", "name")), *numbers, links, dims, strict=True))


def rows_in_file(path: Path) -> list[tuple[Any, ...]]:
    """The same rows, event by event; a call of several items links to any of them, which have one name each here."""
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)["traceEvents"]
    known = [each for each in events if each["ph"] == "X" and each["cat"] not in ("Trace", "overhead")]
    of_device, of_call = {}, {}
    for each in sorted(known, key=lambda each: float(each["ts"])):
        correlation = argument(each, "correlation")
        if each["cat"] in ("cuda_runtime", "cuda_driver"):
            of_call[correlation] = each["name"]
        elif correlation > 0:
            of_device[correlation] = each["name"]
    return [row_in_file(each, of_call, of_device) for each in known]


def row_in_file(event: dict[str, Any], of_call: dict[int, str], of_device: dict[int, str]) -> tuple[Any, ...]:
    correlation = argument(event, "correlation")
    other_end = of_device if event["cat"] in ("cuda_runtime", "cuda_driver") else of_call
    start_us, length_us = Decimal(event["ts"]), Decimal(event["dur"])
    ts = math.ceil(start_us)
    is_gpu = event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    return (
        event["cat"],
        event["name"],
        ts,
        max(math.floor(start_us + length_us), ts),
        argument(event, "stream") if is_gpu or event["cat"] == "cuda_sync" else -1,
        correlation,
        argument(event, "bytes") if is_gpu else -1,
        other_end.get(correlation, min(correlation, 0)) if correlation > 0 else min(correlation, 0),
        json.dumps(event.get("args", {}).get("Input Dims", "-1") if event["cat"] == "cpu_op" else "-1"),
    )


def argument(event: dict[str, Any], name: str) -> int:
    return int(event.get("args", {}).get(name, -1))
