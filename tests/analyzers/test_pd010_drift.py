"""PD010: what it says of drifts of every cause, and as many runs and windows on which it and PD003 say nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from long_runs import drifting_runs, healthy_runs

from perfdoctor import pipeline
from perfdoctor.analysis.captured_facts import RunSteps
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import read_texts, registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

MS = 1_000_000
COUNT = 600
LEVEL, RAMP = np.full(COUNT, 10.0), np.linspace(10, 30, COUNT)
JUMP = np.where(np.arange(COUNT) < 300, 10.0, 20.0)


def run_of(step_ms: Any, **columns: Any) -> RunSteps:
    """The steps of a run; columns in ms, of which `samples` and `contains` are taken as they are."""
    count = len(step_ms)
    contains = columns.pop("contains", (frozenset(),) * count)
    known = {
        name: np.asarray(values if name == "samples" else values * MS, np.int64) for name, values in columns.items()
    }
    return RunSteps(
        number=np.arange(count, dtype=np.int64),
        dur_ns=np.asarray(np.asarray(step_ms) * MS, np.int64),
        loader_wait_ns=known.pop("loader_wait_ns", np.zeros(count, np.int64)),
        is_after=np.ones(count, bool),
        contains=contains,
        **known,  # type: ignore[arg-type]
    )


def window_of(
    ops: Mapping[str, tuple[int, int]], python_us: int = 0, shape: int | Sequence[object] | None = 64, **facts: Any
) -> tuple[TraceBuilder, CapturedFacts]:
    """Six steps on the CPU: of each op its calls and the length of one in us, and Python after them at `train.py:9`.

    The line of an op may follow its name: "aten::mm at train.py:5". `shape` is the rows of its first input, a range of
    them for the steps, or all of its inputs; None where no shapes are recorded.
    """
    trace, at = TraceBuilder(device=None), 0
    first = facts.pop("first_step", 30)
    for step in range(6):
        begun = at
        rows = shape[step] if isinstance(shape, range) else shape
        inputs = [[rows, 64], [64, 64]] if isinstance(rows, int) else rows
        for place, (calls, length) in ops.items():
            name, _, line = place.partition(" at ")
            if line:
                trace.range(f"@{line}", at, calls * length)
            for _ in range(calls):
                trace.op(name, at, length, shapes=inputs)
                at += length
        trace.range("@train.py:9", at, max(python_us, 1))
        at += max(python_us, 1)
        trace.step(begun, at - begun)
    windows = {"timing": {"steps": 6, "complete": True, "file": "timing.json.gz", "first_step": first}}
    return trace, CapturedFacts.parse({"windows": windows, **facts})


def launching_window(
    ops: int, between_us: int, first_step: int = 30, wait_us: int = 1
) -> tuple[TraceBuilder, CapturedFacts]:
    """Six steps on a GPU that launch a short kernel by each op, with Python between them, and wait for the loader."""
    trace, at = TraceBuilder(), 0
    for _ in range(6):
        begun = at
        for _ in range(ops):
            trace.op("aten::norm", at, 20, shapes=[[64]]).kernel("norm", at + 15, 10, launch_us=at + 5)
            at += 20 + between_us
        trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, wait_us)
        at += wait_us
        trace.step(begun, at - begun)
    windows = {"timing": {"steps": 6, "complete": True, "file": "timing.json.gz", "first_step": first_step}}
    return trace, CapturedFacts.parse({"windows": windows})


def gpu_window(malloc_us: int, sm_mhz: int, first_step: int = 30) -> tuple[TraceBuilder, CapturedFacts]:
    """Six steps on a GPU: in each a kernel of 9 ms, which the allocator delays, at that clock under load."""
    trace = TraceBuilder()
    length = 9_100 + malloc_us
    for number in range(6):
        at = number * length
        trace.step(at, length)
        trace.call("cudaMalloc", at + 20, malloc_us)
        trace.op("aten::mm", at + malloc_us + 30, 20).kernel(
            "sgemm", at + malloc_us + 60, 9_000, launch_us=at + malloc_us + 35
        )
    under_load = {
        "timing": {"samples": 9, "busy": 9, "clocked": 9, "sm_mhz": sm_mhz, "reasons": {"thermal": {"samples": 9}}}
    }
    nvml = {"status": "sampled", "devices": [{"device": 0, "under_load": under_load}]}
    windows = {"timing": {"steps": 6, "complete": True, "file": "timing.json.gz", "first_step": first_step}}
    return trace, CapturedFacts.parse({"windows": windows, "nvml": nvml, "cuda_memory": {"num_alloc_retries": 7}})


def rank_of(run: RunSteps, early: Any = None, late: Any = None) -> Rank:
    trace, facts = late or window_of({"aten::mm": (1, 9_000)}, first_step=400)
    first = None
    if early is not None:
        first = Rank(early[0].trace(), facts=early[1])
    return Rank(trace.trace(), facts=facts, run_steps=run, early=first)


def findings_on(rank: Rank) -> dict[str, Finding]:
    rules = [rule for rule in registry.load_analyzers() if rule.rule in ("PD003", "PD010")]
    report = pipeline.diagnose_run(Run((rank,)), rules)
    assert not [outcome for outcome in report.outcomes if outcome.status == "failed"]
    return {finding.rule: finding for finding in report.findings}


LINE = {"file": "/job/train.py", "line": 7, "function": "train"}
SAVE = {"call": "torch.save", "location": LINE, "count": 10, "ns": 10 * MS, "bytes": 5000, "steps": 10}


def loader_of(median_ms: int, cpu_ms: int, queued_ms: int = 0) -> list[dict[str, Any]]:
    fetch = {"where": "worker", "batches": 9, "median_ns": median_ms * MS, "cpu_ns": cpu_ms * MS}
    fetch |= {"process_cpu_ns": cpu_ms * MS, "max_ns": median_ms * MS, "queued_ns": queued_ms * MS}
    return [{"dataset": "Files", "num_workers": 2, "items_location": LINE, "wait_ns": 9, "fetch": fetch}]


OPS = {"aten::mm": (1, 9_000)}
EARLY = window_of(OPS)
TENTH = np.arange(COUNT) % 10 == 9
RARE = TENTH * (RAMP - 10) * 5
SLOWLY = TENTH * np.linspace(100, 150, COUNT)
COMPILING = tuple(frozenset(["compile"]) if late else frozenset[str]() for late in np.arange(COUNT) >= 300)

FIRING: dict[str, tuple[str, Callable[[], Rank]]] = {
    "a history": ("host", lambda: rank_of(run_of(RAMP), EARLY, window_of(OPS, 9_000, first_step=400))),
    "a kept graph": (
        "graph",
        lambda: rank_of(
            run_of(RAMP),
            window_of({"autograd::engine::evaluate_function: AddmmBackward0": (2, 500), **OPS}),
            window_of({"autograd::engine::evaluate_function: AddmmBackward0": (20, 500), **OPS}, first_step=400),
        ),
    ),
    "hooks": (
        "calls",
        lambda: rank_of(
            run_of(RAMP),
            window_of({"aten::norm": (1, 500), **OPS}),
            window_of({"aten::norm": (20, 500), **OPS}, first_step=400),
        ),
    ),
    "longer sequences": (
        "shapes",
        lambda: rank_of(run_of(RAMP), EARLY, window_of({"aten::mm": (1, 20_000)}, shape=99, first_step=400)),
    ),
    "more launches by a GPU's program": (
        "calls",
        lambda: rank_of(run_of(RAMP), launching_window(50, 150), launching_window(150, 150, 400)),
    ),
    "Python between the launches of a GPU's program": (
        "host",
        lambda: rank_of(run_of(RAMP), launching_window(50, 150), launching_window(50, 500, 400)),
    ),
    "slower ops": ("ops", lambda: rank_of(run_of(RAMP), EARLY, window_of({"aten::mm": (1, 20_000)}, first_step=400))),
    "more samples": ("samples", lambda: rank_of(run_of(RAMP, samples=RAMP.astype(int)))),
    "the collector": (
        "collector",
        lambda: rank_of(run_of(LEVEL + TENTH * (RAMP - 10) * 5, gc_ns=TENTH * (RAMP - 10) * 5)),
    ),
    "collections that take half as long again": ("collector", lambda: rank_of(run_of(LEVEL + SLOWLY, gc_ns=SLOWLY))),
    "checkpoints": (
        "host_calls",
        lambda: rank_of(
            run_of(LEVEL + RARE, host_call_ns=RARE), late=window_of(OPS, host_calls=[SAVE], first_step=400)
        ),
    ),
    "compilation": ("compile", lambda: rank_of(run_of(JUMP, contains=COMPILING))),
    "a neighbour": ("cores", lambda: rank_of(run_of(JUMP, queued_ns=JUMP - 10))),
    "a neighbour, while the recorder writes": (
        "cores",
        lambda: rank_of(run_of(LEVEL, cpu_ns=LEVEL, queued_ns=JUMP - 10)),
    ),
    "a loader": ("loader", lambda: rank_of(run_of(RAMP, loader_wait_ns=RAMP - 10))),
    "a loader that computes": (
        "loader_work",
        lambda: rank_of(
            run_of(RAMP, loader_wait_ns=RAMP - 10),
            window_of(OPS, loaders=loader_of(10, 9)),
            window_of({"aten::mm": (1, 20_000)}, loaders=loader_of(30, 28), first_step=400),
        ),
    ),
    "a loader that computes on a busy machine": (
        "loader_work",
        lambda: rank_of(
            run_of(RAMP, loader_wait_ns=RAMP - 10),
            window_of(OPS, loaders=loader_of(10, 9)),
            window_of({"aten::mm": (1, 20_000)}, loaders=loader_of(40, 18, 21), first_step=400),
        ),
    ),
    "a loader whose files come late": (
        "loader_files",
        lambda: rank_of(
            run_of(RAMP, loader_wait_ns=RAMP - 10),
            window_of(OPS, loaders=loader_of(10, 9)),
            window_of({"aten::mm": (1, 20_000)}, loaders=loader_of(30, 9), first_step=400),
        ),
    ),
    "a hot GPU": ("clocks", lambda: rank_of(run_of(RAMP), gpu_window(10, 1900), gpu_window(10, 1200, 400))),
    "a GPU's allocator": (
        "allocator",
        lambda: rank_of(run_of(RAMP), gpu_window(50, 1900), gpu_window(9_000, 1900, 400)),
    ),
    "a history on a busy machine": (
        "host",
        lambda: rank_of(
            run_of(RAMP * 3, cpu_ns=RAMP, queued_ns=RAMP * 2), EARLY, window_of(OPS, 9_000, first_step=400)
        ),
    ),
    "a history and larger tensors on a busy machine": (
        "host",
        lambda: rank_of(
            run_of(RAMP * 3, cpu_ns=RAMP, queued_ns=RAMP * 2),
            window_of({"aten::mm": (1, 5_000), "aten::std": (1, 4_000)}),
            window_of({"aten::mm": (1, 20_000), "aten::std": (1, 19_000)}, 20_000, shape=640, first_step=400),
        ),
    ),
    "a neighbour who slows Python most": (
        "cores",
        lambda: rank_of(
            run_of(JUMP * 2, cpu_ns=JUMP + 10, queued_ns=JUMP - 10),
            window_of(OPS, 9_000),
            window_of({"aten::mm": (1, 18_000)}, 20_000, first_step=400),
        ),
    ),
    "a neighbour who slows the ops, too": (
        "cores",
        lambda: rank_of(
            run_of(JUMP, cpu_ns=JUMP / 2 + 5, queued_ns=JUMP / 2 - 5),
            EARLY,
            window_of({"aten::mm": (1, 20_000)}, first_step=400),
        ),
    ),
    "page faults": ("system", lambda: rank_of(run_of(RAMP, cpu_ns=RAMP, system_cpu_ns=RAMP - 10))),
    "CPU time": ("cpu", lambda: rank_of(run_of(RAMP, cpu_ns=RAMP))),
    "waits": ("waits", lambda: rank_of(run_of(RAMP, cpu_ns=LEVEL))),
    "waits for the loader that no step timed": (
        "unknown",
        lambda: rank_of(run_of(RAMP), launching_window(50, 150), launching_window(50, 150, 400, wait_us=9_000)),
    ),
    "old captures": ("unknown", lambda: rank_of(run_of(RAMP))),
}
PLACED = {"a history": "train.py:9", "checkpoints": "/job/train.py:7", "a loader that computes": "/job/train.py:7"}


@pytest.mark.parametrize("name", FIRING)
def test_a_drift_is_told_with_what_grew(name: str) -> None:
    cause, build = FIRING[name]
    findings = findings_on(build())
    assert list(findings) == ["PD010"], "PD003 says nothing of the same"
    finding = findings["PD010"]
    assert finding.subject == cause
    text = read_texts("drift")[cause]
    assert text["grew"] in finding.title
    assert finding.fix == text.get("fix")
    assert finding.cost_ns > 0
    if name in PLACED:
        assert str(finding.location) == PLACED[name]
    if text.get("may_be_meant"):
        assert finding.severity == "low"
    else:
        assert finding.severity in ("medium", "high")


STD = {
    "aten::mm at train.py:5": (1, 6_000),
    "aten::cat at train.py:6": (1, 1_000),
    "aten::std at train.py:7": (1, 3_000),
}
GROWN = STD | {"aten::cat at train.py:6": (1, 4_000), "aten::std at train.py:7": (1, 20_000)}
WIDE = [[[40, 64], [64, 64]], []]

# The windows early and late, the cause, the line, and what the title says of it.
GREW: dict[str, tuple[Any, Any, str, str | None, str]] = {
    "larger inputs": (
        window_of(STD),
        window_of(GROWN, shape=640, first_step=400),
        "shapes",
        "train.py:7",
        "std at train.py:7 takes 3 ms early and 20 ms late, as its input grew from [64, 64] to [640, 64]",
    ),
    "inputs that are larger in each step": (
        window_of(STD, shape=range(64, 70)),
        window_of(GROWN, shape=range(640, 700, 10), first_step=400),
        "shapes",
        "train.py:7",
        "as its input grew from [64, 64] to [690, 64]",
    ),
    "a longer list": (
        window_of({"aten::stack at train.py:7": (1, 9_000)}, shape=[[[8, 8]] * 30, []]),
        window_of({"aten::stack at train.py:7": (1, 20_000)}, shape=[[[8, 8]] * 400, []], first_step=400),
        "shapes",
        "train.py:7",
        "stack at train.py:7 takes 9 ms early and 20 ms late, as its inputs grew from 30 to 400 tensors",
    ),
    "an op in a list of tensors that grow": (
        window_of({"aten::cat": (1, 9_000)}, shape=WIDE),
        window_of({"aten::cat": (1, 20_000)}, shape=[[[400, 64], [64, 64]], []], first_step=400),
        "shapes",
        None,
        "cat takes 9 ms early and 20 ms late, as its input grew from [40, 64] to [400, 64]",
    ),
    "two ops of one line": (
        window_of({"aten::std at train.py:7": (1, 3_000), "aten::mul at train.py:7": (1, 3_000)}),
        window_of(
            {"aten::std at train.py:7": (1, 9_000), "aten::mul at train.py:7": (1, 8_000)}, shape=99, first_step=400
        ),
        "shapes",
        "train.py:7",
        "std and mul at train.py:7 take 6 ms early and 17 ms late, as their input grew from [64, 64] to [99, 64]",
    ),
    "more calls": (
        window_of({"aten::norm at train.py:7": (2, 500), **OPS}),
        window_of({"aten::norm at train.py:7": (20, 500), **OPS}, first_step=400),
        "calls",
        "train.py:7",
        "norm at train.py:7 takes 1 ms early and 10 ms late, as a step runs 2 of norm early and 20 late",
    ),
    "the same shapes": (
        window_of(STD),
        window_of(GROWN, first_step=400),
        "ops",
        "train.py:7",
        "the same ops on the same shapes take longer (std at train.py:7 takes 3 ms early and 20 ms late, on [64, 64]",
    ),
    "shapes that are known of early windows only": (
        window_of(STD),
        window_of(GROWN, shape=None, first_step=400),
        "slower",
        "train.py:7",
        "ops take longer (std at train.py:7 takes 3 ms early and 20 ms late, on inputs of unknown shapes)",
    ),
    "shapes that are known of late windows only": (
        window_of(STD, shape=None),
        window_of(GROWN, first_step=400),
        "slower",
        "train.py:7",
        "on inputs of unknown shapes",
    ),
    "shapes that are never known": (
        window_of(STD, shape=None),
        window_of(GROWN, shape=None, first_step=400),
        "slower",
        "train.py:7",
        "on inputs of unknown shapes",
    ),
    "inputs that are hardly larger": (
        window_of(STD, shape=64),
        window_of(GROWN, shape=65, first_step=400),
        "slower",
        "train.py:7",
        "on inputs that vary in size",
    ),
    "shapes that vary": (
        window_of(STD, shape=range(60, 66)),
        window_of(GROWN, shape=range(62, 68), first_step=400),
        "slower",
        "train.py:7",
        "on inputs that vary in size",
    ),
}


@pytest.mark.parametrize("name", GREW)
def test_it_says_which_op_grew_where_and_in_what(name: str) -> None:
    early, late, cause, line, says = GREW[name]
    finding = findings_on(rank_of(run_of(RAMP), early, late))["PD010"]
    assert (finding.subject, finding.location and str(finding.location)) == (cause, line)
    assert says in finding.title


@pytest.mark.parametrize("name", GREW)
def test_windows_that_differ_in_a_steady_run_are_no_drift(name: str) -> None:
    early, late, *_ = GREW[name]
    assert "PD010" not in findings_on(rank_of(run_of(LEVEL), early, late))


@pytest.mark.parametrize("name", GREW)
def test_only_the_same_known_shapes_mean_a_slower_machine(name: str) -> None:
    early, late, cause, *_ = GREW[name]
    finding = findings_on(rank_of(run_of(RAMP), early, late))["PD010"]
    assert ("the same ops on the same shapes" in finding.title) == (cause == "ops")
    assert ("The machine is slower than at first" in finding.advice) == (cause == "ops")
    assert ("Whether their inputs grow is not known" in finding.advice) == (cause == "slower")


def test_other_lines_that_grow_are_evidence() -> None:
    early, late, *_ = GREW["larger inputs"]
    evidence = findings_on(rank_of(run_of(RAMP), early, late))["PD010"].evidence
    assert [each.value for each in evidence if each.label == "also grows"] == [
        "cat at train.py:6 takes 1 ms early and 4 ms late, as its input grew from [64, 64] to [640, 64]"
    ]


QUIET = {
    "steady": lambda: run_of(LEVEL),
    "a twentieth more": lambda: run_of(LEVEL * np.linspace(1, 1.05, COUNT)),
    "a machine as busy as before": lambda: run_of(LEVEL, cpu_ns=LEVEL, queued_ns=(np.arange(COUNT) % 3) * 5.0),
    "a disturbed second at the end": lambda: run_of(JUMP / 10, cpu_ns=JUMP / 10),
    "faster": lambda: run_of(RAMP[::-1]),
    "a warm-up": lambda: run_of(np.where(np.arange(COUNT) < 100, 30.0, 10.0)),
    "too few steps": lambda: run_of(np.linspace(10, 12, 60)),
    "more micro-batches": lambda: RunSteps(**{**vars_of(run_of(JUMP)), "backwards": (JUMP // 10).astype(np.int64)}),
    "some busy minutes": lambda: run_of(np.where((np.arange(COUNT) // 40) == 8, 20.0, 10.0)),
    "epochs": lambda: run_of(10 + (np.arange(COUNT) % 100) / 20),
    "two shapes": lambda: run_of(np.where(np.arange(COUNT) % 3, 10.0, 14.0)),
    "collections as ever": lambda: run_of(LEVEL + TENTH * 3, gc_ns=TENTH * 3),
    "a machine that is busy throughout": lambda: run_of(JUMP * 2, cpu_ns=JUMP * 1.2, queued_ns=JUMP * 0.8),
    "checkpoints as ever": lambda: run_of(LEVEL + TENTH * 3, host_call_ns=TENTH * 3),
}


def vars_of(steps: RunSteps) -> dict[str, Any]:
    return {name: getattr(steps, name) for name in RunSteps.__dataclass_fields__}


@pytest.mark.parametrize("name", QUIET)
def test_what_comes_back_is_no_drift(name: str) -> None:
    assert "PD010" not in findings_on(rank_of(QUIET[name]()))


@pytest.mark.parametrize("name", healthy_runs())
def test_a_healthy_hour_has_no_finding_of_drift(name: str) -> None:
    assert rank_of(run_of(healthy_runs()[name])).drift is None


@pytest.mark.parametrize("name", drifting_runs())
def test_a_planted_drift_is_told_once(name: str) -> None:
    steps, _, began, factor = drifting_runs()[name]
    rank = rank_of(run_of(steps))
    assert rank.drift is not None
    assert rank.drift.growth == pytest.approx(factor, rel=0.08)
    assert abs(rank.drift.first_step - began) < 0.09 * len(steps)
    assert "PD010" in findings_on(rank)


def test_without_a_late_window_the_advice_says_how_to_get_one() -> None:
    finding = findings_on(rank_of(run_of(JUMP, cpu_ns=JUMP)))["PD010"]
    assert "perfdoctor run --skip 450" in finding.advice


def test_a_late_window_that_never_came_is_none() -> None:
    assert rank_of(run_of(RAMP), EARLY, window_of(OPS)).growth is None


def test_the_drift_is_left_out_of_slow_steps() -> None:
    with_evaluations = RAMP.copy()
    with_evaluations[99::100] += 300
    contains = tuple(frozenset(["evaluation"]) if step % 100 == 99 else frozenset[str]() for step in range(COUNT))
    findings = findings_on(rank_of(run_of(with_evaluations, contains=contains)))
    assert set(findings) == {"PD003", "PD010"}
    assert "they evaluate" in findings["PD003"].title
