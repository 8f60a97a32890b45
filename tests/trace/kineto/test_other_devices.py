"""Accelerators that are not known: either reader refuses their programs, and never calls them CPU programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.api import analyze
from perfdoctor.cli.main import main
from perfdoctor.errors import TraceError
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace, parse
from perfdoctor.trace.kineto.event_columns import KIND_OF_CATEGORY, OTHER_DEVICE_CATEGORIES

READERS = pytest.mark.parametrize("block", [None, 64], ids=["reference", "compiled"])


def training(*categories: str) -> TraceBuilder:
    """Two steps of ops on the CPU, with three events of each category beside them."""
    b = TraceBuilder()
    for number in range(2):
        b.step(1000 * number, 1000).op("aten::linear", 1000 * number + 10, 400)
    for category in categories:
        for at in (100, 300, 1100):
            b.event(ph="X", cat=category, name="work", pid=9, tid=9, ts=at, dur=150)
    return b


@READERS
@pytest.mark.parametrize("category", OTHER_DEVICE_CATEGORIES)
def test_a_program_on_another_accelerator_is_refused(category: str, block: int | None) -> None:
    with pytest.raises(TraceError) as caught:
        parse(training(category).to_bytes(), "rank0.json", block=block)
    assert str(caught.value) == (
        "rank0.json: the program ran on an accelerator that is not known here "
        f"(3 events of category {category}, but neither kernels nor GPU copies); "
        "give the trace of a run on NVIDIA or AMD GPUs, or use the tools of the accelerator's vendor"
    )


@READERS
def test_the_most_frequent_category_is_named(block: int | None) -> None:
    b = training("mtia_runtime", "mtia_ccp_events").event(
        ph="X", cat="MTIA_CCP_Events", name="work", pid=9, tid=9, ts=1500, dur=10
    )
    with pytest.raises(TraceError, match="4 events of category mtia_ccp_events"):
        parse(b.to_bytes(), "x", block=block)


@READERS
def test_events_of_another_accelerator_alone_are_refused(block: int | None) -> None:
    text = json.dumps([{"ph": "X", "cat": "hpu_op", "name": "k", "pid": 1, "tid": 1, "ts": 0, "dur": 1}])
    with pytest.raises(TraceError, match=r"1 event of category hpu_op"):
        parse(text.encode(), "x", block=block)


@READERS
@pytest.mark.parametrize("category", OTHER_DEVICE_CATEGORIES)
def test_a_trace_with_kernels_is_read_as_without_such_events(
    category: str, block: int | None, content: Callable[[Trace], dict[str, Any]]
) -> None:
    traces: list[Trace] = []
    for categories in ((), (category,)):
        b = training(*categories)
        b.kernel("gemm", 200, 50)
        traces.append(parse(b.to_bytes(), "x", block=block))
    assert len(traces[1].gpu) == 1
    assert content(traces[0]) == content(traces[1])


@READERS
@pytest.mark.parametrize("category", ["cuda_profiler_range", "collective_comm", "overhead", "cuda_event", "trace"])
def test_other_categories_of_the_profiler_mean_no_accelerator(category: str, block: int | None) -> None:
    assert category not in KIND_OF_CATEGORY
    trace = parse(training(category).to_bytes(), "x", block=block)
    assert (len(trace.gpu), len(trace.ops), trace.warnings) == (0, 2, ())


@READERS
def test_calls_of_cuda_show_a_known_device_whose_work_was_not_recorded(block: int | None) -> None:
    b = training("privateuse1_runtime")
    b.call("cudaLaunchKernel", 20, 5)
    assert len(parse(b.to_bytes(), "x", block=block).calls) == 1


def test_the_command_line_refuses_it_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = training("privateuse1_driver").write(tmp_path / "npu.json")
    assert main(["analyze", str(path)]) == 2
    ended = capsys.readouterr()
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert f"{path}: the program ran on an accelerator that is not known here (3 events" in ended.err


def test_a_program_on_the_cpu_is_analysed_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(training().write(tmp_path / "cpu.json"))]) == 0
    assert "accelerator" not in "".join(capsys.readouterr())


def ranks(folder: Path, *categories: tuple[str, ...]) -> Path:
    """A folder with a rank for each tuple of categories; ranks without any have kernels."""
    for rank, each in enumerate(categories):
        b = training(*each).header(distributedInfo={"rank": rank, "world_size": len(categories)})
        if not each:
            b.kernel("gemm", 200, 50)
        b.write(folder / f"rank{rank}.json")
    return folder


def test_a_folder_of_ranks_on_such_accelerators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"rank0\.json: the program ran on an accelerator that is not known"):
        analyze(ranks(tmp_path, ("hpu_op",), ("hpu_op",)))


def test_one_such_rank_among_others_is_missing_and_says_why(tmp_path: Path) -> None:
    report = analyze(ranks(tmp_path, (), ("mtia_runtime",)))
    (missing,) = report.missing
    assert missing.rank == 1
    assert "an accelerator that is not known here (3 events of category mtia_runtime" in missing.warnings[0]
    assert [account.rank for account in report.account] == [0]
