"""Cases of the rules about steps as such: PD003."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase


def steps_of(*lengths_us: float, device: str | None = "NVIDIA A100-SXM4-80GB", busy: bool = True) -> TraceBuilder:
    """Steps of such lengths; the GPU works through all of each (`busy`) or for the first 900 us."""
    trace, at = TraceBuilder(device=device), 0.0
    for length in lengths_us:
        trace.step(at, length)
        if device is None:
            trace.op("aten::addmm", at, length if busy else 900)
        else:
            trace.kernel(TENSOR_GEMM, at + 5, (length if busy else 900) - 5, launch_us=at)
        at += length
    return trace


def evaluation() -> TraceBuilder:
    """The fifth of six steps has a range of the user's after its usual work."""
    trace = steps_of(1000, 1000, 1000, 1000, 4000, 1000, device=None, busy=False)
    return trace.range("evaluate", 4950, 3000).range("inner", 4960, 2990).op("aten::mm", 5000, 100)


def slow_loader() -> TraceBuilder:
    return (
        steps_of(*[1000] * 7, 2000, busy=False).range(LOADER, 7950, 1000).kernel(TENSOR_GEMM, 8955, 45, launch_us=8952)
    )


def evaluation_in_each_step() -> TraceBuilder:
    trace = steps_of(*[1000] * 6, device=None, busy=False)
    for number in range(6):
        trace.range("evaluate", 1000 * number + 910, 80)
    return trace


def loader_in_each_step() -> TraceBuilder:
    trace = steps_of(*[2000] * 6, busy=False)
    for number in range(6):
        trace.range(LOADER, 2000 * number + 950, 1000)
    return trace


def marks_ahead(*lengths_us: float) -> TraceBuilder:
    """Marks of these lengths, in each of which a kernel is launched; the GPU needs 1000 us for each and is behind."""
    trace, at = TraceBuilder(), 0.0
    for row, length in enumerate(lengths_us):
        trace.kernel(TENSOR_GEMM, 1000 * (row + 1), 1000, launch_us=at + 1)
        trace.step(at, length)
        at += length
    return trace


TWO_KINDS = (1000, 1000, 3000, 1000, 3000, 1000, 3000)


def timed(
    lengths_us: Sequence[float],
    cpu_us: Sequence[float] | None = None,
    preempted: list[int] | None = None,
    backwards: list[int] | None = None,
) -> dict[str, Any]:
    """Facts of a capture about the steps of its trace."""
    cpu_ns = None if cpu_us is None else [round(1000 * us) for us in cpu_us]
    return {
        "timing_step_ns": [round(1000 * us) for us in lengths_us],
        "timing_cpu_ns": cpu_ns,
        "timing_preempted": preempted,
        "timing_backwards": backwards,
    }


def passes(*forwards: int, backwards: Sequence[int] = (1, 1, 1, 1, 1)) -> TraceBuilder:
    """A step for each number of forward passes of ten ops of 10 us, with so many backward passes of 100 us."""
    trace, at = TraceBuilder(device=None), 0.0
    for forward, backward in zip(forwards, backwards, strict=True):
        trace.step(at, 100 * (forward + backward))
        for _ in range(10 * forward):
            trace.op(f"aten::op{int(at / 10) % 10}", at, 10)
            at += 10
        for number in range(backward):
            trace.op("autograd::engine::evaluate_function: MmBackward0", at, 100, sequence=number)
            at += 100
    return trace


PD003 = [
    RuleCase(  # 3000 us more than usual in one of six steps
        "PD003",
        "an-evaluation",
        evaluation,
        (
            ExpectedFinding(
                "info",
                0,
                (None, None, None),
                title="Once in this trace: a step takes 4 ms, 4.0 times the median: more time in evaluate",
                evidence={
                    "usual step": 1_000_000,
                    "more unexplained time in a slow step": 2_900_000,
                    "most more time in": "evaluate",
                    "that is, in a slow step": 3_000_000,
                },
            ),
        ),
        via_file=True,
    ),
    RuleCase(
        "PD003",
        "larger-inputs",
        lambda: steps_of(1000, 1000, 3000, 1000, 1000),
        (ExpectedFinding("info", 0, title="more GPU work", advice="group batches by length"),),
    ),
    RuleCase(
        "PD003",
        "the-loader",
        slow_loader,
        (ExpectedFinding("info", 0, title="waits for the loader", advice="prefetch_factor"),),
    ),
    RuleCase(
        "PD003",
        "two-of-eight",
        lambda: steps_of(1000, 1000, 2000, 1000, 1000, 2000, 1000, 1000),
        (ExpectedFinding("info", 0, title="2 of 7 steps take up to 2.0 times"),),
    ),
    RuleCase(
        "PD003",
        "an-evaluation-that-no-range-names",
        lambda: passes(2, 2, 2, 20, 2),
        (ExpectedFinding("info", 0, title="200 ops instead of 20", advice="Evaluate less"),),
    ),
    RuleCase(
        "PD003",
        "more-passes-of-both-kinds",
        lambda: passes(2, 2, 2, 12, 2, backwards=(1, 1, 1, 6, 1)),
        (ExpectedFinding("info", 0, title="120 ops instead of 20", advice="group batches"),),
    ),
    RuleCase("PD003", "a-pass-more-or-less", lambda: passes(6, 6, 6, 7, 6)),
    RuleCase("PD003", "alike-passes", lambda: passes(6, 6, 6, 6, 6)),
    RuleCase(
        "PD003",
        "on-a-cpu",
        lambda: steps_of(1000, 1000, 1000, 2000, 1000, device=None),
        (ExpectedFinding("info", 0, title="the same ops take longer", advice="Else other programs"),),
    ),
    RuleCase(
        "PD003",
        "in-three-steps",
        lambda: steps_of(1000, 1000, 2000, 1000, 1000, 2000, 1000, 1000, 2000, 1000, 1000),
        (
            ExpectedFinding(
                "medium", 272_727, (0, None, 272_727), title="3 of 10 steps take up to 2.0 times the median"
            ),
        ),
    ),
    RuleCase(
        "PD003",
        "two-kinds-of-steps",
        lambda: steps_of(1000, 1000, 3000, 1000, 3000, 1000, 3000),
        (ExpectedFinding("medium", 857_143, title="Steps take 1 to 3 ms: more GPU work in the long ones"),),
    ),
    RuleCase(
        "PD003",
        "two-kinds-of-steps-on-a-cpu",
        lambda: steps_of(1000, 1000, 3000, 1000, 3000, 1000, 3000, device=None),
        (ExpectedFinding("low", 857_143, title="Steps take 1 to 3 ms: the same ops take longer in the long ones"),),
    ),
    RuleCase(
        "PD003",
        "uneven-steps",
        lambda: steps_of(1000, 800, 1000, 1200, 1100, 900, 1300),
        (ExpectedFinding("low", 128_571, title="Steps take 0.8 to 1.3 ms"),),
    ),
    RuleCase(
        "PD003",
        "uneven-marks-of-even-steps",
        lambda: marks_ahead(900, 1300, 700, 1250, 850, 1000),
        (ExpectedFinding("info", 0, (None, None, None), title="The CPU's steps take 0.7 to 1.3 ms, but the GPU"),),
    ),
    RuleCase(  # the capture says that the CPU computed more
        "PD003",
        "two-kinds-of-steps-with-their-cpu-time",
        lambda: steps_of(*TWO_KINDS, device=None),
        (ExpectedFinding("medium", 857_143, title="Steps take 1 to 3 ms: more work in the ops in the long ones"),),
        facts=timed(TWO_KINDS, cpu_us=TWO_KINDS, preempted=[0] * 7),
    ),
    RuleCase(  # the CPU computed no more: the ops waited for a core
        "PD003",
        "two-kinds-of-steps-of-the-same-cpu-time",
        lambda: steps_of(*TWO_KINDS, device=None),
        (ExpectedFinding("low", 857_143, title="the same ops take longer", advice="Else other programs shared"),),
        facts=timed(TWO_KINDS, cpu_us=[1000] * 7, preempted=[0] * 7),
    ),
    RuleCase(
        "PD003",
        "once-with-its-cpu-time",
        lambda: steps_of(1000, 1000, 1000, 4000, 1000, device=None),
        (ExpectedFinding("info", 0, title="more work in the ops", advice="group batches by length"),),
        facts=timed([1000, 1000, 1000, 4000, 1000], cpu_us=[1000, 1000, 1000, 4000, 1000], preempted=[0] * 5),
    ),
    RuleCase(  # one preemption takes 20 ms at most
        "PD003",
        "a-wait-longer-than-others-take",
        lambda: steps_of(1e5, 1e5, 1e5, 4e5, 1e5, device=None),
        (ExpectedFinding("info", 0, title="Once in this trace"),),
        facts=timed([1e5, 1e5, 1e5, 4e5, 1e5], cpu_us=[1e5] * 5, preempted=[0, 0, 0, 1, 0]),
    ),
    RuleCase(
        "PD003",
        "two-kinds-of-steps-by-other-programs",
        lambda: steps_of(*TWO_KINDS, device=None),
        facts=timed(TWO_KINDS, cpu_us=[1000, 1000, 1020, 1000, 1010, 1000, 1030], preempted=[0, 0, 2, 0, 2, 0, 2]),
    ),
    RuleCase(
        "PD003",
        "two-kinds-of-steps-by-their-micro-batches",
        lambda: steps_of(*TWO_KINDS, device=None),
        facts=timed(TWO_KINDS, backwards=[1, 1, 3, 1, 3, 1, 3]),
    ),
    RuleCase(  # more CPU time, and as much more to do
        "PD003",
        "two-kinds-of-steps-by-their-micro-batches-with-their-cpu-time",
        lambda: steps_of(*TWO_KINDS, device=None),
        facts=timed(TWO_KINDS, cpu_us=TWO_KINDS, preempted=[0] * 7, backwards=[1, 1, 3, 1, 3, 1, 3]),
    ),
    RuleCase(
        "PD003",
        "once-by-other-programs",
        lambda: steps_of(1000, 1000, 1000, 4000, 1000, device=None),
        facts=timed([1000, 1000, 1000, 4000, 1000], cpu_us=[1000] * 5, preempted=[0, 0, 0, 1, 0]),
    ),
    RuleCase("PD003", "even-marks", lambda: marks_ahead(990, 1010, 1000, 1005, 995, 1000)),
    RuleCase("PD003", "steady", lambda: steps_of(1000, 1010, 990, 1000, 1300, 1000)),
    RuleCase("PD003", "only-the-first", lambda: steps_of(3000, 1000, 1000, 1000, 1000, 1000)),
    RuleCase("PD003", "too-few", lambda: steps_of(1000, 1000, 3000, 1000)),
    RuleCase("PD003", "steady-on-a-cpu", lambda: steps_of(1000, 1010, 990, 1000, 1300, 1000, device=None)),
    RuleCase("PD003", "within-a-tenth", lambda: steps_of(1000, 950, 1050, 1000, 980, 1040, 960)),
    RuleCase("PD003", "within-a-tenth-on-a-cpu", lambda: steps_of(1000, 950, 1050, 1000, 980, 1040, 960, device=None)),
    RuleCase("PD003", "an-evaluation-in-each-step", evaluation_in_each_step),
    RuleCase("PD003", "the-loader-in-each-step", loader_in_each_step),
    RuleCase("PD003", "a-slow-one-among-very-many", lambda: steps_of(*[1000] * 30, 1600)),
]
