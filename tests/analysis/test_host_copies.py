"""Copies between host and device: the line that makes them, the end of a wait, and no idle time promised twice."""

from __future__ import annotations

from trace_strategies import TENSOR_GEMM

from perfdoctor import pipeline
from perfdoctor.analysis.host.host_copies import HostCopies, host_copies
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.vocabulary import HTOD


def rank_with_copies(*sizes: int, lines: bool) -> Rank:
    """A step with a copy each 100 us, each from another line, and a wait of 10 us in the op of the copy."""
    trace = TraceBuilder().step(0, 1000)
    for row, size in enumerate(sizes):
        at = 100 * row
        if lines:
            trace.range(f"@train.py:{row + 1}", at, 90)
        trace.op("aten::to", at, 80)
        trace.memcpy("HtoD", at + 5, 20, size_bytes=size, correlation=trace.call("cudaMemcpyAsync", at + 2, 25))
        trace.call("cudaStreamSynchronize", at + 30, 10)
    return Rank(trace.trace())


def copies_to_device(rank: Rank) -> HostCopies:
    return host_copies(rank.trace, rank.window, copy_kinds_of(rank.trace).matches(HTOD))


def lines_of(rank: Rank) -> list[tuple[str | None, int]]:
    copies = copies_to_device(rank)
    found = copies.group_by(rank.places.lines_of_items(copies.rows))
    return [(str(place) if place else None, len(of_line)) for place, of_line in found]


def test_lines_of_the_analysed_window_come_first() -> None:
    assert lines_of(rank_with_copies(8, 16, lines=True)) == [("train.py:1", 1), ("train.py:2", 1)]


def test_without_lines_those_of_copies_of_the_same_size_in_the_evidence_window_count() -> None:
    timing, evidence = rank_with_copies(16, 8, 16, 999, lines=False), rank_with_copies(8, 16, lines=True)
    rank = Rank(timing.raw_trace, evidence_trace=evidence.raw_trace)
    # Of a size that is not there, that of the other copies in ops of the same name.
    assert lines_of(rank) == [("train.py:2", 2), ("train.py:1", 2)]


def test_without_either_they_are_one_group() -> None:
    assert lines_of(rank_with_copies(8, 16, lines=False)) == [(None, 2)]


def test_the_cpu_resumes_after_the_wait_of_the_same_op_and_no_other() -> None:
    trace = TraceBuilder().step(0, 1000)
    trace.op("aten::to", 0, 30).memcpy("HtoD", 5, 20, correlation=trace.call("cudaMemcpyAsync", 2, 25))
    trace.call("cudaStreamSynchronize", 40, 10)  # after the op: another sync of the program
    trace.op("aten::to", 100, 30, thread=2)
    trace.memcpy("HtoD", 105, 20, correlation=trace.call("cudaMemcpyAsync", 102, 25, thread=2))
    trace.call("cudaStreamSynchronize", 128, 10)  # on another thread
    rank = Rank(trace.trace())
    assert copies_to_device(rank).resume_ns.tolist() == [27_000, 127_000]
    assert copies_to_device(rank_with_copies(8, lines=False)).resume_ns.tolist() == [40_000]


def test_copies_outside_of_the_window_are_left_out() -> None:
    trace = TraceBuilder().memcpy("HtoD", 5, 20, launch_us=2).step(100, 100).memcpy("HtoD", 105, 20, launch_us=102)
    rank = Rank(trace.trace())
    assert len(copies_to_device(rank)) == 1


def batch_behind_the_queue(*, pinned: bool) -> Rank:
    """Steps of 10 ms: products until 4 ms, the batch of 1 ms that is launched beside them, then more products.

    From pageable memory the copying call and a synchronize call block the CPU until 5.06 ms, and it launches nothing
    before 5.99 ms; from pinned memory it launches at once.
    """
    trace = TraceBuilder()
    for at in (0, 10_000, 20_000):
        trace.step(at, 10_000).kernel(TENSOR_GEMM, at + 20, 3980, launch_us=at + 5)
        trace.op("aten::to", at + 100, 30 if pinned else 5000).op("aten::copy_", at + 110, 15 if pinned else 4980)
        call = trace.call("cudaMemcpyAsync", at + 115, 8 if pinned else 4900)
        trace.memcpy("HtoD", at + 4010, 1000, 6_000_000, correlation=call, pinned=pinned)
        if not pinned:
            trace.call("cudaStreamSynchronize", at + 5020, 40)
        resumed = at + (5020 if pinned else 6000)
        trace.kernel(TENSOR_GEMM, resumed, at + 9990 - resumed, launch_us=at + 200 if pinned else resumed - 10)
    return Rank(trace.trace())


def findings_of(rank: Rank, *rules: str) -> dict[str, Finding]:
    """The findings of some rules, by the id of their rule."""
    report = pipeline.diagnose_run(Run((rank,)), [rule for rule in registry.load_analyzers() if rule.rule in rules])
    return {finding.rule: finding for finding in report.findings}


def test_a_pageable_copy_that_is_the_sync_too_promises_its_idle_time_once() -> None:
    rank = batch_behind_the_queue(pinned=False)
    copy, sync = findings_of(rank, "PD105")["PD105"], findings_of(rank, "PD102")["PD102"]
    # The copy costs itself and the 1 ms of idle time around it, which is all that the sync costs.
    assert (copy.saving.high_ns, sync.saving.high_ns) == (2_000_000, 1_000_000)
    both = findings_of(rank, "PD102", "PD105")
    assert (both["PD105"].cost_ns, both["PD102"].cost_ns) == (2_000_000, 1_000_000)
    assert (both["PD105"].saving.high_ns, both["PD102"].saving.high_ns) == (2_000_000, 0)


def test_a_pinned_copy_without_a_wait_is_no_finding() -> None:
    assert findings_of(batch_behind_the_queue(pinned=True), "PD102", "PD105") == {}
