"""Reports with every chart and tables, built by hand, and names as hostile as a trace can hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import report_samples

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.places.place import PlaceName
from perfdoctor.report.chart_data import (
    FlameGraph,
    Link,
    MemoryTimeline,
    RankCharts,
    Roof,
    Roofline,
    StepSeries,
    StepTimeline,
    Track,
    claim_key,
)
from perfdoctor.report.finding import Evidence
from perfdoctor.report.memory_summary import LineMemory, MemorySummary, PeakMemory
from perfdoctor.report.quote_lines import SOURCE_LINE
from perfdoctor.report.report import Report
from perfdoctor.report.table import Column, Table

MS = 1_000_000
MB = 1_000_000
CATEGORIES = ("gemm", "elementwise", "idle_dataloader", "idle_launch", "op", "call", "forward", "python")
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "{{ 7 * 7 }}{% for x in y %}",
    "\u202eltr\u202c\x00\x1b[31mred\u2028<!--",
    "'\"><svg onload=document.title='owned'>&amp;",
    "w" * 10_000,
    "\ud800lone",
)


def track(name: str, kind: str, items: list[tuple[float, float, int, int, int]]) -> Track:
    """A track of items given as start and length in ms, name, category and depth."""
    start, dur, name_id, category, depth = (np.array(column) for column in zip(*items, strict=True))
    return Track(
        name,
        kind,
        np.round(start * MS).astype(np.int64),
        np.round(dur * MS).astype(np.int64),
        name_id.astype(np.int32),
        category.astype(np.int8),
        depth.astype(np.int8),
        np.ones(len(items), np.int32),
    )


def timeline(names: tuple[str, ...]) -> StepTimeline:
    """43 ms: a wait for the loader, then ops that launch kernels one after the other."""
    kernels = [(20.0 + i, 0.8, i % len(names), i % 2, 0) for i in range(22)]
    ops = [(19.0 + i, 0.9, i % len(names), 4, 0) for i in range(22)]
    calls = [(19.5 + i, 0.2, (i + 1) % len(names), 5, 1) for i in range(22)]
    on_thread = sorted([*ops, *calls])
    at = np.array([on_thread.index(call) for call in calls], np.int32)
    number = np.arange(22, dtype=np.int32)
    return StepTimeline(
        3,
        2 * 43 * MS,
        43 * MS,
        (
            track("phases", "phases", [(19, 24, 0, 6, 0)]),
            track("idle gaps", "gaps", [(0, 19, 0, 2, 0), (19, 1, 0, 3, 0)]),
            track("stream 7", "stream", kernels),
            track("thread 4711, which launches", "thread", on_thread),
        ),
        names,
        CATEGORIES,
        Link(np.full(22, 3, np.int32), at, np.full(22, 2, np.int32), number),
        left_out=5,
    )


def charts(names: tuple[str, ...]) -> RankCharts:
    """Every chart of a rank, with these names."""
    flames = FlameGraph(
        ("loading data", *names),
        np.array([0, 1, 2, 1], np.int32),
        np.array([-1, 0, 1, 0], np.int32),
        np.array([20 * MS, 15 * MS, 9 * MS, 5 * MS], np.int64),
        np.array([0, 1, 2, 1], np.int8),
        ("phase", "place", "op"),
        {1: PlaceName("line", "train.py", 41, "train_one_epoch"), 3: PlaceName("line", "small.py", 1)},
    )
    roofs = (Roof("bf16", "flops", 312e12), Roof("memory", "bytes", 1.5e12))
    roofline = Roofline(
        names[:3],
        ("gemm", "elementwise", "norm")[: len(names)],
        np.array([3e12, 4e9, 0.0][: len(names)]),
        np.array([1e10, 4e9, 1e9][: len(names)]),
        np.array([20 * MS, 8 * MS, 2 * MS][: len(names)]),
        ("yes", "na", "no")[: len(names)],
        roofs,
    )
    steps = StepSeries(
        np.array([44, 43, 47, 43], np.int64) * MS, 10, np.array([41, 42, 41], np.int64) * MS, np.array([8, 9, 14])
    )
    tables = (kernel_table(names), ops_table())
    return RankCharts(None, timeline(names), flames, roofline, steps, memory(names[0]), tables=tables)


def memory(file: str) -> tuple[MemoryTimeline, ...]:
    """The memory of a GPU whose peak, the third of four events, has a finding; and that of one without times."""
    parts = {"parameters": 2_000 * MB, "activations": 5_000 * MB}
    peak = PeakMemory(7_000 * MB, 9_000 * MB, "forward", 1, None, parts, (LineMemory(file, 7, "train", 4_000 * MB),))
    first = MemoryTimeline(
        MemorySummary(None, 0, "trace", True, peak),
        tuple(parts),
        np.array([[2_000, 2_000, 2_000, 2_000], [0, 3_000, 5_000, 1_000]], np.int64) * MB,
        np.array([0, 4, 5, 9]),
        np.array([0, 10, 20, 40], np.int64) * MS,
        np.array([4_000, 6_000, 9_000, 9_000], np.int64) * MB,
        2,
        frozenset({claim_key(report_samples.loader_stall().findings[0])}),
    )
    other = replace(peak, reserved_bytes=None, by_line=())
    second = replace(first, summary=MemorySummary(None, 1, "snapshot", True, other), time_ns=None, reserved_bytes=None)
    return first, replace(second, findings=frozenset())


def kernel_table(names: tuple[str, ...]) -> Table:
    """Sixty kernels, so that neither the static rows nor the first rows of the script are all."""
    count = 60
    step_ns = tuple((count - i) * 100_000 for i in range(count))
    return Table(
        "kernels",
        "name",
        (
            Column("name", "kernel", "text", tuple(f"{names[i % len(names)]} {i}" for i in range(count))),
            Column("step_ns", "time a step", "ns", step_ns, "Time per step without the profiler."),
            Column("share", "share", "share", tuple(ns / 43e6 for ns in step_ns)),
            Column("flops_per_s", "rate", "flops_per_s", tuple(None if i % 3 else 1e12 * i for i in range(count))),
            Column("bound", "bound", "text", ("compute",) * count, is_main=False),
            Column("bytes", "bytes", "bytes", (None,) * count),
        ),
        sorted_by="step_ns",
    )


def ops_table() -> Table:
    """A table without rows, whose note says what to record."""
    return Table("ops", "name", (Column("name", "op", "text", ()),), notes=("No op was recorded.",))


def everything(names: tuple[str, ...] = ("ampere_sgemm_128x64", "vectorized_add", "layer_norm")) -> Report:
    """A report with findings of every kind, a diff, trials, notes and every chart."""
    base = report_samples.at_places()
    stall, info = base.findings
    source = Evidence("source line", "loader = DataLoader(dataset, batch_size=64)", id=SOURCE_LINE)
    stall = replace(stall, evidence=(source, *stall.evidence))
    command = replace(
        report_samples.kernel().findings[0],
        title="The caching allocator is off",
        fix="env -u PYTORCH_NO_CUDA_MEMORY_CACHING python train.py",
    )
    claims = {claim_key(stall): np.array([[0, 19 * MS], [30 * MS, 41 * MS]], np.int64)}
    return replace(base, findings=(stall, command, info), charts=replace(charts(names), claims=claims))


def four_ranks() -> Report:
    """Four ranks with a heat map."""
    return replace(report_samples.four_ranks(), charts=charts(("gemm", "add", "norm")))


def hostile() -> Report:
    """Hostile names wherever a trace or a rule of a third party can bring one."""
    base = everything(HOSTILE)
    first, *others = base.findings
    first = replace(
        first,
        title=" ".join(HOSTILE),
        advice=" ".join(HOSTILE),
        fix="\n".join(HOSTILE),
        location=SourceLocation(HOSTILE[0], 3, HOSTILE[1]),
        evidence=tuple(Evidence(name, name) for name in HOSTILE),
        references=("javascript:alert(1)", HOSTILE[1], "https://example.org/a?b=c"),
        rule="PD101",
        name=HOSTILE[1],
    )
    traces = tuple(replace(trace, path=HOSTILE[0], device=HOSTILE[1], warnings=HOSTILE) for trace in base.traces)
    outcomes = tuple(replace(outcome, why=" ".join(HOSTILE)) for outcome in base.outcomes)
    context = replace(base.context, evidence=HOSTILE, torch_version=HOSTILE[1])
    return replace(base, findings=(first, *others), traces=traces, outcomes=outcomes, context=context)
