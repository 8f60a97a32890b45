"""No slice over 5 % of the window of any shared trace stays unsaid, and what is said of it is true.

The figures in sentences were counted in the raw JSON of the files by a script of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from real_traces import find_once, read_once

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.pipeline import summarize_rank
from perfdoctor.rank import Rank
from perfdoctor.report.report import Report, UnexplainedSlice
from perfdoctor.report.unexplained import MIN_SHARE
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.split_ranks import split_ranks
from perfdoctor.unclaimed_time import NEAR_ROOF_SHARE

pytestmark = pytest.mark.corpus


def ranks_in(path: Path) -> Iterator[Rank]:
    yield from (Rank(trace) for trace in split_ranks(read_once(path)))


def time_near_roof(rank: Rank, time: Intervals) -> Intervals:
    """The time in which a kernel ran that reaches a fair share of its roof, or that belongs to one that does."""
    gpu = rank.trace.gpu
    near = np.nan_to_num(rank.bounds.efficiency) >= NEAR_ROOF_SHARE
    near |= np.isin(gpu.op, gpu.op[near & (gpu.op >= 0)])
    return iv.intersect(iv.union(gpu.start_ns[near], gpu.end_ns[near]), time)


def test_nothing_large_stays_unsaid(shared: Path) -> None:
    """Each detail of each trace: claimed by a finding on the rank, or near its roof, or a sentence."""
    files = [*(shared / "traces").rglob("*.json.gz"), *(shared / "nsight").glob("*.sqlite")]
    unsaid, slices = [], 0
    for path in sorted(files):
        for rank, findings in find_once(path):
            summary = summarize_rank(rank, options=AnalysisOptions(tables=()), known_findings=findings)
            said = {each.detail for each in summary.unexplained}
            slices += len(said)
            claimed = iv.union_of(finding.claim.intervals for finding in findings)
            for detail, part in rank.account.parts.items():
                left = iv.subtract(part, claimed)
                if detail in ("compute", "bandwidth"):
                    left = iv.subtract(left, time_near_roof(rank, left))
                if iv.total(left) > MIN_SHARE * rank.window_ns and detail not in said:
                    unsaid.append(f"{path.name} rank {rank.rank}: {detail}")
    assert not unsaid
    assert slices > 50  # the test sees slices at all


def slice_of(report: Report, detail: str) -> UnexplainedSlice:
    return next(each for each in report.unexplained if each.detail == detail)


def test_clones_of_compiled_code_are_a_finding(report_on: Callable[[str], Report]) -> None:
    """4,645 copies from device to device, 93 ms, at 300 GB/s; the busiest op is copy_ in CompiledFunctionBackward."""
    report = report_on("v100-ddp-test")
    found = next(finding for finding in report.findings if finding.rule == "PD109")
    assert found.share_of_step == pytest.approx(0.125, abs=0.015)  # 11.7 % run alone, replayed without them 13.1 %
    assert "of tensors that compiled code clones" in found.title
    assert {e.label: e.value for e in found.evidence}["achieved"] == pytest.approx(296, abs=5)
    assert "memcpy" not in {each.detail for each in report.unexplained}


def test_idle_time_of_decode_steps_has_a_sentence(corpus: Path) -> None:
    """Two decode steps of CUDA and HIP graphs, idle for 28 and 14 % of the time in gaps of which one reaches 1 ms."""
    for name, share, gaps in (
        ("b300-decode-graph.json.gz", 0.28, "1.01 ms at most: 81% at step["),
        ("mi300x-decode-graph.json.gz", 0.14, "418 us at most: 77% at step["),
    ):
        (rank,) = ranks_in(corpus / name)
        said = {each.detail: each for each in summarize_rank(rank).unexplained}
        assert said["idle_launch"].share == pytest.approx(share, abs=0.01)
        assert gaps in said["idle_launch"].sentence


def test_files_without_gpu_events_say_that_nothing_is_known(report_on: Callable[[str], Report]) -> None:
    for name in ("a100-cupti-counters.json.gz", "no-distributed-info.json.gz"):
        (found,) = report_on(name).unexplained
        assert found.detail == "idle_unexplained"
        assert found.share > 0.99
        assert "whether the GPU worked is not known" in found.sentence


def test_one_sentence_for_all_ranks_of_a_job(report_on: Callable[[str], Report]) -> None:
    report = report_on("sampled-w128")
    details = [each.detail for each in report.unexplained]
    assert len(details) == len(set(details))
    assert "most events were taken out of the file" in slice_of(report, "idle_unexplained").sentence
    assert slice_of(report, "idle_unexplained").sentence.endswith("such a slice, too.")


def test_no_other_shared_trace_is_transfer_bound(corpus: Path, report_on: Callable[[str], Report]) -> None:
    """Of the others none spends more than 5 % of its time in copies that nothing overlaps and no other rule reports."""
    names = sorted(path.name for path in corpus.iterdir() if path.is_dir() or path.name.endswith(".json.gz"))
    found = {name for name in names if any(finding.rule == "PD109" for finding in report_on(name).findings)}
    assert found == {"v100-ddp-test"}
