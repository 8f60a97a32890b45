"""Cases of programs on the CPU alone, for rules about kernels that have findings on them, too: PD104, PD303, PD304."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

STEP_US = 1000.0


def host(*busy: tuple[str, float, float], steps: int = 1, device: str | None = None) -> TraceBuilder:
    """Steps of 1000 us on the CPU with some ops, each a name, a start in the step and a length."""
    trace = TraceBuilder(device=device)
    for number in range(steps):
        at = STEP_US * number
        trace.step(at, STEP_US)
        for name, start, dur in busy:
            trace.op(name, at + start, dur)
    return trace


def base(step_us: float) -> dict[str, Any]:
    """Facts of a capture whose steps took so long without the profiler."""
    return {"base_step_ns": [round(1000 * step_us)] * 10}


def waits_for_core(times: int, ms: float = 0.6, steps: int = 5) -> dict[str, Any]:
    """The same of recorded steps that each lost their core so often, for so long in all."""
    waits = {"timing_queued_ns": [round(ms * 1e6)] * steps, "timing_preempted": [times] * steps}
    return {**base(1000), "timing_step_ns": [1_000_000] * steps, **waits}


# --- PD104 ------------------------------------------------------------------------------------------------------------

LINE, WAIT = "@train.py:7 scaled", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_APPEND = "numpy/lib/_function_base_impl.py(5577): append"


def tiny_ops(count: int = 200, us: float = 2, every: float = 4, rest: str = "aten::mm", name: str = "aten::mul") -> Any:
    """Tiny ops one behind the other from the beginning of a step, then a long one until 970 us."""
    after = every * count + 20
    return *((name, every * row, us) for row in range(count)), (rest, after, 970 - after)


def loop(name: str = "aten::mul", until: float = 800, steps: int = 1) -> TraceBuilder:
    """Most of the ops called by one line."""
    trace = host(*tiny_ops(name=name), steps=steps)
    for number in range(steps):
        trace.range(LINE, STEP_US * number, until)
    return trace


def slow_and_quick_calls() -> TraceBuilder:
    """150 ops at a line with hardly any time between them, and 30 at another one, 20 us apart."""
    quick = [("aten::select", 1.2 * row, 1.0) for row in range(150)]
    slow = [("aten::mul", 200 + 20.0 * row, 2.0) for row in range(30)]
    trace = host(*quick, *slow, ("aten::mm", 802, 190))
    return trace.range("@train.py:8 main", 0, 190).range("@train.py:9 main", 195, 605)


def op_that_runs_many(calls: int = 0, backward: int = 0) -> TraceBuilder:
    """An embedding that calls 200 norms of 2 us each, its backward pass of so many ops, and so many calls at a line."""
    trace = TraceBuilder(device=None).step(0, STEP_US).range("@train.py:5 forward", 0, 401)
    trace.op("aten::embedding", 0, 400, sequence=1)
    for row in range(200):
        trace.op("aten::norm", 2 * row, 2)
    trace.range(LINE, 410, 4 * calls)
    for row in range(calls):
        trace.op("aten::mul", 410 + 4 * row, 2)
    for row in range(backward):
        trace.op("autograd::engine::evaluate_function: EmbeddingBackward0", 410 + 4 * row, 3, sequence=1)
    after = 410 + 4 * max(calls, backward)
    return trace.op("aten::mm", after, 995 - after)


def packed_sequence(trace: TraceBuilder | None = None, us: float = 20) -> TraceBuilder:
    """Cells that one op calls, 40 of such a length, after those of another trace or before a product."""
    first = 0 if trace is None else 600
    trace = host(("aten::mm", 850, 100)) if trace is None else trace
    trace.op("aten::lstm", first, 40 * us)
    for row in range(40):
        trace.op("aten::lstm_cell", first + us * row, us)
    return trace


def loop_of_nested_ops() -> TraceBuilder:
    """100 ops of 6 us at a line, each of which calls two more."""
    trace = host(*tiny_ops(100, 6, 8))
    for row in range(100):
        trace.op("aten::add", 8 * row + 1, 2).op("aten::add", 8 * row + 3, 2)
    return trace.range(LINE, 0, 800)


def written_in_pieces(first_us: float = 200) -> TraceBuilder:
    """Writes at a line, the first as long as that, and five of 50 us between ops."""
    trace = host(("aten::mm", 0, 100), ("aten::mm", 100 + first_us, 400 - first_us))
    for number in range(5):
        trace.op("aten::mm", 550 + 80 * number, 30)
    trace.op("aten::mm", 870, 120)
    trace.range("@train.py:9 log", 100, first_us)
    for number in range(5):
        trace.range("@train.py:9 log", 500 + 80 * number, 50)
    trace.frame("<built-in method write of _io.BufferedWriter object at 0x7f286cea40>", 100, first_us)
    return trace


def loop_over_shapes(*sizes: list[int], count: int = 200, every: float = 4) -> TraceBuilder:
    """The same, with recorded sizes of the arguments of each op."""
    trace = host()
    for name, start, dur in tiny_ops(count, every / 2, every):
        trace.op(name, start, dur, shapes=list(sizes), types=["float"] * len(sizes))
    return trace.range(LINE, 0, 800)


def cell_loop(count: int = 16, us: float = 50, name: str = "aten::lstm_cell") -> TraceBuilder:
    """Cells of a recurrent network one behind the other, then a product."""
    trace = host(*((name, us * row, us) for row in range(count)), ("aten::mm", us * count, 100 if us > 10 else 900))
    return trace.range("@model.py:4 forward", 0, us * count)


def module_loop(
    count: int = 16,
    sizes: Sequence[int] = (32, 1, 7),
    between: str = "slice",
    op: str = "lstm",
    *,
    batch_first: bool = True,
) -> TraceBuilder:
    """A recurrent module that is called again and again, with an op between the calls, then a product."""
    trace = host(("aten::mm", 60 * count, 900 - 60 * count))
    for number in range(count):
        trace.op(f"aten::{between}", 60 * number, 5, shapes=[[32, 72, 7], []])
        flags = ["", "", "", "True", "2", "0.", "True", "False", str(batch_first)]
        trace.op(f"aten::{op}", 60 * number + 5, 55, shapes=[list(sizes), [], []], concrete=flags)
    return trace.range("@model.py:4 forward", 0, 60 * count)


def siblings(count: int = 16, between: str = "slice", width: int = 8, *, numbered: bool = True) -> TraceBuilder:
    """Modules of one class that get a slice of a tensor each, or another op's result, then a product."""
    trace = host(("aten::mm", 50 * count, 950 - 50 * count))
    trace.frame("train.py(3): forward", 0, 50 * count)
    for number in range(count):
        at = 50 * number
        trace.op(f"aten::{between}", at, 2, shapes=[[32, count], [], []])
        trace.frame(f"nn.Module: FeatureNet_{number if numbered else 0}", at + 3, 45)
        trace.op("aten::linear", at + 4, 40, shapes=[[32, 4], [width, 4], [width]])
    return trace


def python_gap(
    us: float = 600,
    line: str | None = "@train.py:9 sample",
    *,
    lists: float = 0,
    frame: str | None = None,
    rest: str | None = None,
) -> TraceBuilder:
    """An op of 100 us, a while in which none runs, 0.9 of it in one function and the rest in another, and a long op.

    `lists` is the share of the while in which lists become tensors.
    """
    trace = host(("aten::mm", 0, 100), ("aten::mm", 100 + us, 890 - us))
    if line is not None:
        trace.range(line, 100, us)
    if lists:
        trace.frame("<built-in method tensor of type object at 0x7f286cea40>", 200, lists * us)
    if frame:
        trace.frame(frame, 100, 0.9 * us)
    if rest:
        trace.frame(rest, 100 + 0.9 * us, 0.1 * us)
    return trace


def python_between_slow_calls(break_us: float) -> TraceBuilder:
    """40 ops with such breaks between them, 250 us in which none runs, and a long op."""
    ops = [("aten::add", number * (2 + break_us), 2) for number in range(40)]
    first = 40 * (2 + break_us) + 250
    return host(*ops, ("aten::mm", first, 990 - first)).range("@train.py:9 sample", first - 250, 250)


def python_in_steps(number: int) -> TraceBuilder:
    """Five steps of 1 ms; in so many of them no op runs for 600 us, in one as where a thread loses its core."""
    trace = TraceBuilder(device=None)
    for step in range(5):
        at = STEP_US * step
        trace.step(at, STEP_US)
        if step < number:
            trace.range("@train.py:9 sample", at + 100, 600)
        for start, dur in ((0, 100), (700, 290)) if step < number else ((0, 990),):
            trace.op("aten::mm", at + start, dur)
    return trace


def python_beside_ops(function: str) -> TraceBuilder:
    """200 tiny ops called at a line, then Python for 300 us at a line of the same or another function."""
    trace = host(*tiny_ops(every=2.5)[:-1], ("aten::mm", 820, 150)).range("@train.py:7 search", 0, 500)
    return trace.range(f"@train.py:9 {function}", 500, 320)


def ops_in_a_loop(op: str = "aten::eq", *, sizes: int = 1, calls_each: int = 64) -> TraceBuilder:
    """Two steps of 1 ms with 64 ops of 10 us at a line, of so many sizes, so many in a call of their function."""
    trace = TraceBuilder(device=None)
    for start in (0, STEP_US):
        trace.step(start, STEP_US)
        for first in range(0, 64, calls_each):
            trace.frame("train.py(3): update", start + 10 * first, 10 * calls_each)
        for number in range(64):
            trace.op(op, start + 10 * number, 10, shapes=[[512 + number % sizes, 256], []])
        trace.op("aten::mm", start + 660, 300, shapes=[[256, 256], [256, 256]])
    return trace


def helper_in_a_loop(calls: int = 40, us: float = 800, *, is_marked: bool = True, op: bool = False) -> TraceBuilder:
    """A step of 1 ms that calls a function so often in a loop, in which no op runs, or as many as fit."""
    trace = TraceBuilder(device=None).step(0, STEP_US)
    main = trace.frame("train.py(3): main", 0, STEP_US)
    for start, end in ((0, 100), (120 + us, 990)):
        trace.frame("train.py(20): step", start, end - start, parent=main)
        trace.op("aten::mm", start, end - start)
    for number in range(calls):
        each = us / calls
        at = 100 + each * number
        trace.frame("train.py(30): parse", at + each / 20, 0.8 * each, parent=main)
        if is_marked:
            trace.range("@train.py:5 main", at + 0.9 * each, each / 20)
        if op:
            trace.range("@train.py:31 parse", at + 2, 14)
            for first in range(2, 14, 3):
                trace.op("aten::add", at + first, 1)
    return trace


def python_gap_of_lines(us: float, *, lists: float = 0) -> TraceBuilder:
    """The same, with a quarter of the while at each of four lines."""
    trace = python_gap(us, None, lists=lists)
    for number in range(4):
        trace.range(f"@train.py:{9 + number} sample", 100 + number * us / 4, us / 4)
    return trace


def loop_over_loader(workers: int) -> dict[str, Any]:
    """Facts of a DataLoader that train.py:9 iterates over."""
    return {"loaders": [{"num_workers": workers, "location": {"file": "train.py", "line": 9, "function": "sample"}}]}


def compiling_program() -> TraceBuilder:
    return host(*tiny_ops()).op("_compile.compile_inner (dynamo_timed)", 0, 900, thread=2)


def tiny_ops_before_the_steps() -> TraceBuilder:
    """A loop over rows that prepares the data before the first step."""
    trace = TraceBuilder(device=None).range(LINE, 0, 800)
    for name, start, dur in tiny_ops():
        trace.op(name, start, dur)
    return trace.step(STEP_US, STEP_US).op("aten::mm", STEP_US + 5, 970)


def called_by_row(calls: int, rows: int = 1, grows: bool = False, op: str = "aten::linear") -> TraceBuilder:
    """Steps of 20 ms on the CPU that call a module so often, 300 us each, with so many rows."""
    trace = TraceBuilder(device=None)
    encode = trace.frame("train.py(7): encode", 0, 40_000)
    for step in range(2):
        trace.step(20_000 * step, 20_000)
        for call in range(calls):
            at = 20_000 * step + 305 * call
            trace.frame("nn.Module: Encoder_0", at + 1, 303, parent=encode)
            trace.op(op, at + 2, 300, shapes=[[rows, 64], [64, 64], [64]])
            trace.op("aten::cat", at + 302, 1, shapes=[[call if grows else 3, 64]])
        rest = 20_000 * step + 305 * calls + 1
        trace.op("aten::softmax", rest, 20_000 * (step + 1) - rest - 1, shapes=[[512, 512]])
    return trace


PD104 = [
    *(
        RuleCase(
            "PD104",
            f"cpu-a-loop-over-{name}",
            build,
            (ExpectedFinding("medium", 738_000, location="train.py:7", advice=advice),),
            base(900),
        )
        for name, build, advice in (
            ("single-numbers", partial(loop_over_shapes, [], []), "by tolist()"),
            ("rows", partial(loop_over_shapes, [32], []), "Let one op do"),
        )
    )
]


def without_steps() -> TraceBuilder:
    trace = TraceBuilder(device=None)
    for name, start, dur in tiny_ops():
        trace.op(name, start, dur)
    return trace


# --- PD303 ------------------------------------------------------------------------------------------------------------

PRIMITIVES = ("lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_")


def optimizer_step(
    names: tuple[str, ...] = PRIMITIVES,
    tensors: int = 20,
    us: float = 3.0,
    optimizer: str | None = "AdamW",
    steps: int = 1,
    prefix: str = "aten::",
) -> TraceBuilder:
    """A step of an optimizer op by op, 1 us apart, then a long op; with None the program does that by itself."""
    ops = [f"{prefix}{name}" for name in names] * tensors
    end = (us + 1) * len(ops)
    trace = host(
        *((name, (us + 1) * row, us) for row, name in enumerate(ops)), ("aten::mm", end + 20, 970 - end), steps=steps
    )
    for number in range(steps):
        if optimizer is not None:
            trace.range(f"Optimizer.step#{optimizer}.step", STEP_US * number, end)
        trace.range("@train.py:9 train", STEP_US * number, end)
    return trace


def with_closure(*, marked: bool, tensors: int = 20, names: tuple[str, ...] = PRIMITIVES) -> TraceBuilder:
    """A step of an optimizer that begins with a closure of 200 us: a forward pass, zero_grad, a backward pass."""
    count = len(names) * tensors
    trace = TraceBuilder(device=None).step(0, STEP_US)
    trace.op("aten::linear", 10, 80).op("autograd::engine::evaluate_function: AddmmBackward0", 105, 95)
    trace.range("Optimizer.zero_grad#AdamW.zero_grad", 95, 5)
    for row in range(count):
        trace.op(f"aten::{names[row % len(names)]}", 200 + 4 * row, 3)
    if marked:
        trace.range("perfdoctor::closure", 0, 200)
    trace.range("Optimizer.step#AdamW.step", 0, 200 + 4 * count)
    return trace.range("@train.py:9 train", 0, 200 + 4 * count).op("aten::mm", 210 + 4 * count, 780 - 4 * count)


def closures_of_lbfgs() -> TraceBuilder:
    """A step of LBFGS that calls its closure four times; between two calls it computes for 5 us in two ops."""
    trace = TraceBuilder(device=None).step(0, STEP_US).range("Optimizer.step#LBFGS.step", 0, 960)
    for row in range(4):
        at = 240 * row
        trace.range("perfdoctor::closure", at, 230)
        for number in range(25):
            trace.op("aten::linear" if number < 12 else "aten::mm", at + 9 * number, 8)
        trace.op("aten::dot", at + 231, 2).op("aten::add_", at + 234, 3)
    return trace.op("aten::mm", 962, 30)


def updates_before_the_steps() -> TraceBuilder:
    """Updates tensor by tensor before the first step that is marked, as of a warm-up; then a step without any."""
    trace = TraceBuilder(device=None).range("Optimizer.step#AdamW.step", 0, 800)
    for row in range(200):
        trace.op(f"aten::{PRIMITIVES[row % len(PRIMITIVES)]}", 4 * row, 3)
    return trace.step(STEP_US, STEP_US).op("aten::mm", STEP_US + 5, 970)


def optimizer_settings(**values: object) -> dict[str, Any]:
    return {"optimizers": [{"class": "AdamW", **values}]}


# --- PD304 ------------------------------------------------------------------------------------------------------------

ADDS = "torch::autograd::AccumulateGrad"


def zero_grad(fills: int = 12, adds: int = 12, us: float = 5.0, foreach: bool = False) -> TraceBuilder:
    """Fills within zero_grad, additions in the backward pass, and a long op."""
    busy = [("aten::_foreach_zero_", 10.0, fills * us)] if foreach else []
    busy += [("aten::zero_", 10 + us * row, us) for row in range(fills)]
    for row in range(adds):
        at = 210 + (us + 2) * row
        busy += [(ADDS, at, us + 1), ("aten::add_", at + 0.5, us)]
    trace = host(*busy, ("aten::mm", 500, 450))
    return trace.range("Optimizer.zero_grad#SGD.zero_grad", 8, fills * us + 4).range("@train.py:5 train", 8, 100)
