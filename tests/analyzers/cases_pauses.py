"""Cases of calls that keep the CPU from its work: PD110, PD113 and PD515."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rule_cases import LOADER, TENSOR_GEMM

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

MS = 1_000_000
LINE = {"file": "train.py", "line": 30, "function": "fit"}
FRAMES = {
    "collect": "<built-in function collect>",
    "fsync": "<built-in function fsync>",
    "save": "/venv/torch/serialization.py(944): save",
    "deepcopy": "copy.py(128): deepcopy",
    "print": "<built-in function print>",
}


def training(*frames: tuple[str, float], device: str | None = None, rank: int | None = None) -> TraceBuilder:
    """Four steps of 10 ms; on the CPU with an op of 4 ms and then frames that take so many ms, one after the other."""
    ranks = {} if rank is None else {"rank": rank, "world_size": 2}
    trace = TraceBuilder(device=device, **ranks)  # type: ignore[arg-type]
    for number in range(4):
        at = 10_000 * number
        trace.step(at, 10_000)
        if device is None:
            trace.op("aten::addmm", at, 4000)
        else:
            trace.kernel(TENSOR_GEMM, at + 10, 4000, launch_us=at)
        begin = at + 4000.0
        for name, dur_ms in frames:
            trace.range("@train.py:8 write", begin, 1000 * dur_ms).frame(FRAMES[name], begin, 1000 * dur_ms)
            begin += 1000 * dur_ms
    return trace


def captured(*calls: Mapping[str, Any], world_size: int = 1, **collector: int) -> Mapping[str, Any]:
    """Facts of 20 steps without a profiler, of 10 ms each in the median, and of 240 ms together."""
    return {
        "base_step_ns": [10 * MS] * 3,
        "world_size": world_size,
        "run": {"steps": 40, "median_ns": 10 * MS, "unprofiled_steps": 20, "unprofiled_ns": 240 * MS},
        "collector": {"enabled": True, "frozen": 0, "location": LINE, "collect_calls": 0, **collector},
        "host_calls": list(calls),
    }


def calls_of(call: str, each_ms: float, steps: int, **others: Any) -> Mapping[str, Any]:
    """One call in each of some steps, which take 10 ms and the call."""
    each_ns = round(each_ms * MS)
    return {
        "call": call,
        "location": LINE,
        "count": steps,
        "ns": each_ns * steps,
        "steps": steps,
        "step_ns": steps * (10 * MS + each_ns),
        "largest_step_ns": each_ns,
        **others,
    }


def collected(each_ms: float, steps: int, **others: int) -> Mapping[str, Any]:
    """Facts of a program that calls gc.collect in so many steps."""
    of_calls = calls_of("gc.collect", each_ms, steps)
    keys = ("ns", "steps", "step_ns", "largest_step_ns")
    return captured(**{"collect_calls": steps, **{f"collect_{key}": of_calls[key] for key in keys}, **others})


def collected_by_itself(each_ms: float, steps: int, **others: int) -> Mapping[str, Any]:
    """Facts of a program in which Python collects in so many steps."""
    of_calls = calls_of("gc.collect", each_ms, steps)
    figures = {f"collection_{key}": of_calls[key] for key in ("steps", "step_ns", "largest_step_ns")}
    return captured(**{"collections": steps, "collections_ns": of_calls["ns"], **figures, **others})


def saves_of_ranks(each_ms: float, steps: int, wait_ms: float = 0.0, **others: Any) -> Mapping[str, Any]:
    """Facts of one of two ranks that save the same; steps with a save are longer by that, and by a wait."""
    step_ns = round(steps * (10 + each_ms + wait_ms) * MS)
    same = {"checksum": "4096-0badcafe", "bytes": 4096 * steps, "step_ns": step_ns}
    return captured(calls_of("torch.save", each_ms, steps, **{**same, **others}), world_size=2)


def two_ranks() -> list[TraceBuilder]:
    return [training(rank=0), training(rank=1)]


def collecting_on_gpu(kernel_us: float) -> TraceBuilder:
    """Four steps of 10 ms with a kernel and, from 5 to 7 ms, a collection."""
    trace = TraceBuilder()
    for number in range(4):
        at = 10_000 * number
        trace.step(at, 10_000).kernel(TENSOR_GEMM, at + 10, kernel_us, launch_us=at)
        trace.range("perfdoctor::gc.collect", at + 5000, 2000)
    return trace


def copying(name: str, ms: float = 3) -> TraceBuilder:
    """Four steps of 10 ms in which a range, or a frame, of such a name is around or inside of a copy of so many ms."""
    trace = training(("deepcopy", ms))
    for at in range(4000, 40_000, 10_000):
        if name == LOADER:
            trace.range(name, at - 10, 1000 * ms + 20)
        else:
            trace.frame(name, at + 10, 1000 * ms - 20)
    return trace


def saving_with_fsync() -> TraceBuilder:
    trace = training(("save", 3))
    trace.frame(FRAMES["fsync"], 4100, 2000)
    return trace


GPU = "NVIDIA A100-SXM4-80GB"

PD110 = [
    RuleCase(  # 48 of 240 ms
        "PD110",
        "collect-in-each-step",
        training,
        (
            ExpectedFinding(
                "medium",
                2 * MS,
                (0, 2 * MS, 2 * MS),
                location="train.py:30",
                title="gc.collect() takes 20% of the time: 2 ms in each step",
                advice="Leave gc.collect() out of the loop",
                fix="gc.freeze()",
            ),
        ),
        facts=collected(2.4, 20),
    ),
    RuleCase(  # 24 of 240 ms
        "PD110",
        "automatic-collections",
        training,
        (
            ExpectedFinding(
                "medium",
                1 * MS,
                (0, 900_000, 1 * MS),
                title="Python collects garbage in 4 of 20 steps, for 6 ms",
                advice="Freeze what lives long",
            ),
        ),
        facts=collected_by_itself(6, 4),
    ),
    RuleCase(
        "PD110",
        "collect-in-stacks",
        lambda: training(("collect", 2)),
        (ExpectedFinding("medium", 2 * MS, (0, None, 2 * MS), location="train.py:8", confidence=0.6),),
        via_file=True,
    ),
    RuleCase(  # 4 steps are longer by 3 of the 6 ms that a collection takes: the GPU had work queued
        "PD110",
        "half-hidden-on-a-gpu",
        lambda: training(device=GPU),
        (ExpectedFinding("medium", 500_000, (0, 500_000, 500_000), location="train.py:30"),),
        facts=collected(6, 4, collect_step_ns=4 * 13 * MS),
    ),
    RuleCase(  # the GPU idles for 6 of 10 ms, and meanwhile garbage is collected: 40 of the 240 ms of all steps
        "PD110",
        "in-each-step-on-a-gpu",
        lambda: collecting_on_gpu(4000),
        (ExpectedFinding("medium", 1_666_667, (0, 1_666_667, 1_666_667), location="train.py:30"),),
        facts=collected(2, 20),
    ),
    RuleCase("PD110", "beside-a-busy-gpu", lambda: collecting_on_gpu(9900), facts=collected(2, 20)),
    RuleCase("PD110", "collected-once", training, facts=collected(30, 1)),
    RuleCase("PD110", "short-collections", training, facts=collected_by_itself(0.5, 4)),
    RuleCase("PD110", "no-collections", lambda: training(("fsync", 2)), facts=captured()),
    RuleCase("PD110", "hidden-on-a-gpu", lambda: training(device=GPU), facts=collected(6, 4, collect_step_ns=40 * MS)),
]


def evaluating(
    calls: int = 4, function: str = "validate", *, every: int = 1, used: bool = False, device: str | None = None
) -> TraceBuilder:
    """Four steps of 1 ms that call a model so often in a function, 100 us each and 20 us between, and then train it.

    `every`: in how many steps they do. `used`: whether the backward pass goes through these calls, too.
    """
    trace = TraceBuilder(device=device)
    for step in range(4):
        at, number = 1000.0 * step, 10 * step
        trace.step(at, 1000)
        for call in range(calls if step % every == 0 else 0):
            start = at + 120 * call
            trace.range(f"perfdoctor::module_call @train.py:8 {function}", start, 100)
            trace.op("aten::addmm", start, 100, sequence=number + 9 if used else None)
            if device is not None:
                trace.kernel(TENSOR_GEMM, start + 10, 100, launch_us=start + 2)
        trace.range("perfdoctor::module_call @train.py:20 main", at + 600, 100)
        trace.op("aten::addmm", at + 600, 100, sequence=number)
        trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 710, 200, sequence=number)
        if used:
            trace.op("autograd::engine::evaluate_function: AddmmBackward0", at + 920, 50, sequence=number + 9)
        if device is not None:
            trace.kernel(TENSOR_GEMM, at + 610, 100, launch_us=at + 602)
            trace.kernel(TENSOR_GEMM, at + 720, 200, launch_us=at + 712)
    return trace


PD113 = [
    RuleCase(  # 4 calls of 100 us, and 20 us between them
        "PD113",
        "an-evaluation-in-each-step",
        evaluating,
        (
            ExpectedFinding(
                "medium",
                460_000,
                (0, 414_000, 460_000),
                location="train.py:8",
                title="Each step evaluates for 46% of its time: 4 calls of a model",
                advice="Evaluate every so many steps",
                fix="if step % evaluate_every == 0",
            ),
        ),
    ),
    RuleCase(
        "PD113",
        "an-evaluation-on-a-gpu",
        lambda: evaluating(function="test_epoch", device=GPU),
        (ExpectedFinding("medium", 460_000, location="train.py:8", title="Each step evaluates for 46%"),),
    ),
    RuleCase(
        "PD113",
        "two-calls-of-eval-step",
        lambda: evaluating(2, "eval_step"),
        (ExpectedFinding("medium", 220_000, location="train.py:8", title="2 calls of a model"),),
    ),
    RuleCase("PD113", "a-teacher-in-each-step", lambda: evaluating(function="soft_targets")),
    RuleCase("PD113", "an-evaluation-in-every-other-step", lambda: evaluating(every=2)),
    RuleCase("PD113", "a-loss-of-what-is-validated", lambda: evaluating(used=True)),
    RuleCase(  # 40 of 240 ms
        "PD113",
        "checkpoint-every-two-steps",
        training,
        (
            ExpectedFinding(
                "medium",
                round(10 * MS / 6),
                (0, 1_500_000, 1_666_667),
                location="train.py:30",
                title="Saving checkpoints takes 17% of the time: 4 ms each in 10 of 20 steps",
                advice="Save less often",
                fix="if step % save_every == 0:",
                evidence={"calls of torch.save": 10, "steps with one": "10 of 20", "written by a call": 500},
            ),
        ),
        facts=captured(calls_of("torch.save", 4, 10, bytes=5000)),
    ),
    RuleCase(
        "PD113",
        "a-line-on-disk-in-each-step",
        training,
        (
            ExpectedFinding(
                "medium",
                2 * MS,
                (0, 1_800_000, 2 * MS),
                location="train.py:30",
                title="(os.fsync) takes 20% of the time: 2 ms in each step, in 3 calls",
                advice="Log every so many steps",
            ),
        ),
        facts=captured(calls_of("os.fsync", 2.4, 20, count=60)),
    ),
    RuleCase(
        "PD113",
        "copies-of-weights",
        training,
        (ExpectedFinding("medium", 2 * MS, location="train.py:30", title="copy.deepcopy", advice="Copy less often"),),
        facts=captured(calls_of("copy.deepcopy", 4, 12, copied="state")),
    ),
    RuleCase(
        "PD113",
        "parameters-copied-in-stacks",
        lambda: copying("/x/torch/nn/parameter.py(71): __deepcopy__"),
        (ExpectedFinding("medium", 3 * MS, location="train.py:30", title="Copying models or their state"),),
        facts=captured(calls_of("copy.deepcopy", 3.6, 20)),
    ),
    RuleCase(
        "PD113",
        "records-of-a-data-set",
        lambda: copying(LOADER),
        (
            ExpectedFinding(
                "medium",
                3 * MS,
                location="train.py:30",
                title="Copying records while a batch is made (copy.deepcopy of dict with 5 entries) takes 30%",
                advice="Copy what is changed, and no more",
                fix="dict(record)",
            ),
        ),
        facts=captured(calls_of("copy.deepcopy", 3.6, 20, copied="dict with 5 entries")),
    ),
    RuleCase(
        "PD113",
        "a-dictionary-of-which-nothing-is-known",
        lambda: copying("train.py(40): step"),
        (ExpectedFinding("medium", 3 * MS, location="train.py:30", title="Copying objects (copy.deepcopy) takes 30%"),),
        facts=captured(calls_of("copy.deepcopy", 3.6, 20)),
    ),
    RuleCase("PD113", "cheap-records", lambda: copying(LOADER), facts=captured(calls_of("copy.deepcopy", 0.4, 20))),
    RuleCase(
        "PD113", "a-model-copied-once", training, facts=captured(calls_of("copy.deepcopy", 40, 1, copied="model"))
    ),
    RuleCase("PD113", "short-copies-in-stacks", lambda: copying(LOADER, ms=0.5)),
    RuleCase(  # the fsync inside torch.save is a part of it
        "PD113",
        "saves-in-stacks",
        saving_with_fsync,
        (ExpectedFinding("medium", 3 * MS, (0, None, 3 * MS), location="train.py:8", title="Saving checkpoints"),),
        via_file=True,
    ),
    RuleCase(
        "PD113",
        "prints-in-stacks",
        lambda: training(("print", 2)),
        (
            ExpectedFinding(
                "medium", 2 * MS, location="train.py:8", title="Printing takes 20%", advice="Print every so many steps"
            ),
        ),
        facts=captured(),
    ),
    RuleCase(  # the steps are longer by 3 ms
        "PD113",
        "half-hidden-on-a-gpu",
        lambda: training(device=GPU),
        (ExpectedFinding("medium", 500_000, (0, 450_000, 500_000), location="train.py:30"),),
        facts=captured(calls_of("torch.save", 6, 4, step_ns=4 * 13 * MS)),
    ),
    RuleCase("PD113", "cheap-checkpoints", training, facts=captured(calls_of("torch.save", 2, 3))),
    RuleCase("PD113", "one-checkpoint", training, facts=captured(calls_of("torch.save", 40, 1))),
    RuleCase(
        "PD113",
        "reported-on-rank-0",
        lambda: training(rank=1),
        facts=captured(calls_of("torch.save", 4, 10), world_size=2),
    ),
    RuleCase(
        "PD113",
        "hidden-on-a-gpu",
        lambda: training(device=GPU),
        facts=captured(calls_of("torch.save", 6, 4, step_ns=40 * MS)),
    ),
    RuleCase("PD113", "short-in-stacks", lambda: training(("fsync", 0.5), ("print", 0.5))),
    RuleCase("PD113", "no-calls", training, facts=captured()),
]

PD515 = [
    RuleCase(  # 4 steps are 6 ms longer than what rank 0 saves itself: 24 of 240 ms
        "PD515",
        "in-turns",
        two_ranks,
        (
            ExpectedFinding(
                "medium",
                1 * MS,
                (0, 1 * MS, 1 * MS),
                location="train.py:30",
                title="2 ranks save the same checkpoint, one after the other: 6 ms of the others in 4 of 20 steps",
                advice="Let one rank save",
                fix="get_rank() == 0",
            ),
        ),
        facts=saves_of_ranks(6, 4, wait_ms=6),
    ),
    RuleCase(  # nobody knows how much of it is waited for
        "PD515",
        "in-each-step",
        two_ranks,
        (
            ExpectedFinding(
                "medium",
                2 * MS,
                (0, None, 2 * MS),
                location="train.py:30",
                title="2 ranks save the same checkpoint: 2.4 ms",
            ),
        ),
        facts=saves_of_ranks(2.4, 20),
    ),
    RuleCase(  # 3 of the 6 ms
        "PD515",
        "in-turns-beside-other-work",
        two_ranks,
        (
            ExpectedFinding(
                "medium", 500_000, (0, 500_000, 500_000), location="train.py:30", title="one after the other"
            ),
        ),
        facts=saves_of_ranks(6, 4, wait_ms=3),
    ),
    RuleCase(
        "PD515",
        "mostly-at-the-same-time",
        two_ranks,
        (
            ExpectedFinding(
                "low",
                400_000,
                (0, None, 400_000),
                location="train.py:30",
                title="2 ranks save the same checkpoint: 6 ms",
            ),
        ),
        facts=saves_of_ranks(6, 4, wait_ms=2.4),
    ),
    RuleCase(
        "PD515",
        "in-most-steps-of-three-ranks",
        lambda: [training(rank=rank) for rank in range(3)],
        (
            ExpectedFinding(
                "medium",
                4 * MS,
                (0, None, 4 * MS),
                location="train.py:30",
                title="3 ranks save the same checkpoint: 4.8 ms",
            ),
        ),
        facts=saves_of_ranks(2.4, 20),
    ),
    RuleCase("PD515", "short-saves", two_ranks, facts=saves_of_ranks(0.5, 4, wait_ms=0.5)),
    RuleCase("PD515", "at-the-same-time", two_ranks, facts=saves_of_ranks(6, 4)),
    RuleCase("PD515", "unknown-contents", two_ranks, facts=saves_of_ranks(6, 4, wait_ms=6, checksum=None)),
    RuleCase("PD515", "saved-once", two_ranks, facts=saves_of_ranks(60, 1, wait_ms=60)),
    RuleCase("PD515", "one-rank", lambda: training(rank=0), facts=saves_of_ranks(6, 4, wait_ms=6)),
]
