"""What the CPU does in the pauses of real recordings, as their raw JSON says: the cause and the advice of PD103."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.trace.tables.split_ranks import split_ranks

pytestmark = pytest.mark.corpus

WORKERS = "DataLoader"
# By trace: the rule, what the title must say, and what advice or fix must say. By raw JSON and scripts of their own:
PAUSES = {
    # image_processing_videomae.preprocess takes 178 of 218 ms, its _preprocess_image 164.
    "h100-timesformer-bf16.json.gz": ("PD103", "prepares data in _preprocess_image", "the pipeline's one worker"),
    # 815 of 815 aten::empty call hipMalloc.
    "mi300x-resnet18-ddp.json.gz": ("PD107", "without a cache", "PYTORCH_NO_HIP_MEMORY_CACHING"),
    # aten::(un)flatten_dense_tensors take 81 of the 94 ms in DistributedDataParallel.forward; the pause in the
    # optimizer, 12.6 of 13.5 ms in its ops, is part of PD303.
    "a100-nccl-config/rank0.json.gz": ("PD405", "broadcasts the model's buffers", "broadcast_buffers=False"),
    # aten::split_with_sizes takes 73 of 100 ms.
    "v100-resnet18-2ranks/rank0.json.gz": ("PD103", "is in aten::split_with_sizes", "fewer and larger tensors"),
    "v100-resnet18-2ranks/rank1.json.gz": ("PD103", "is in aten::split_with_sizes", "fewer and larger tensors"),
    # Sleeps of 1 s in this range; without Python stacks that is all there is.
    "v100-torchrec-4ranks/rank2.json.gz": ("PD103", "is in # running sparse arch", "with_stack=True"),
}
# What happens once is no pause: by trace its causes, of which the first takes most, and how much it is in ms.
ONCE = {
    # cudaStreamBeginCapture in three regions of 219, 210 and 210 ms.
    "a100-vit-graph-bf16.json.gz": ("graph_capture", 622, 640),
    # One cudaLaunchKernel of 343 (368) of 406 ms, in aten::masked_fill_.
    "rtx4090-llama-2ranks": ("module_loading", 400, 460),
    # A hipLaunchKernel of 6.5 ms.
    "mi250-minitoy.json.gz": ("module_loading", 6.5, 6.7),
}


def finding_of(report: Report, rule: str) -> Finding:
    """The costliest finding of the rule: of PD103 about pauses."""
    found = [f for f in report.findings if f.rule == rule and (rule != "PD103" or " while the CPU " in f.title)]
    return found[0]


@pytest.mark.parametrize("name", PAUSES)
def test_pauses_are_named_by_what_takes_most_of_them(name: str, report_on: Callable[[str], Report]) -> None:
    rule, title, advice = PAUSES[name]
    finding = finding_of(report_on(name), rule)
    assert title in finding.title
    assert advice in f"{finding.advice} {finding.fix}"
    assert WORKERS not in finding.advice
    assert finding.saving.high_ns is None or not finding.title.startswith("Once")


@pytest.mark.parametrize("name", ONCE)
def test_what_happens_once_is_no_pause(name: str, report_on: Callable[[str], Report]) -> None:
    report = report_on(name)
    cause, min_ms, max_ms = ONCE[name]
    once = max(report.once, key=lambda each: each.time_ns)
    assert once.parts[0].cause == cause
    assert min_ms <= once.time_ns / 1e6 <= max_ms
    assert not [f for f in report.findings if f.rule == "PD103" and f.occurs_once]


def test_workers_are_advised_only_where_there_is_a_loader(corpus: Path, report_on: Callable[[str], Report]) -> None:
    checked = 0
    for path in sorted(corpus.rglob("*.json.gz")):
        trace = read_once(path)
        rank = Rank(split_ranks(trace)[0])
        for finding in report_on(str(path.relative_to(corpus))).findings:
            if finding.rule == "PD103":
                checked += 1
                assert WORKERS not in finding.advice or len(rank.loader_waits)
    assert checked >= 10


def test_where_frames_are_recorded_the_cpu_is_somewhere(corpus: Path, report_on: Callable[[str], Report]) -> None:
    checked = 0
    for path in sorted(corpus.rglob("*.json.gz")):
        for finding in report_on(str(path.relative_to(corpus))).findings:
            if finding.rule == "PD103" and " while the CPU " in finding.title and len(read_once(path).frames):
                checked += 1
                assert any(each.label == "what the CPU was in" and each.value for each in finding.evidence)
    assert checked >= 3
