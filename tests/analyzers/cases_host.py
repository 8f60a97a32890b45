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


def waits_for_core(times: int, ms: float = 0.6) -> dict[str, Any]:
    """The same of five recorded steps that each lost their core so often, for so long in all."""
    waits = {"timing_queued_ns": [round(ms * 1e6)] * 5, "timing_preempted": [times] * 5}
    return {**base(1000), "timing_step_ns": [1_000_000] * 5, **waits}


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


NO_COMPILE = "whole tensors in place of their rows."


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


def one_row(calls: int, cost_ms: float, severity: str = "medium") -> tuple[ExpectedFinding, ...]:
    title = f"Encoder is called {calls} times a step, with one row each"
    return (
        ExpectedFinding(severity, round(cost_ms * 1e6), title=title, location="train.py:7", fix="torch.stack(rows)"),
    )


PD104 = [
    RuleCase("PD104", "rows-one-by-one", lambda: called_by_row(40), one_row(40, 40 * 0.301)),
    RuleCase("PD104", "twenty-rows", lambda: called_by_row(20), one_row(20, 20 * 0.301)),
    RuleCase("PD104", "sixteen-rows", lambda: called_by_row(16), one_row(16, 16 * 0.301, "medium")),
    RuleCase("PD104", "tokens-with-a-cache", lambda: called_by_row(40, grows=True)),
    RuleCase("PD104", "a-layer-that-is-shared", lambda: called_by_row(12)),
    RuleCase("PD104", "batches-of-eight", lambda: called_by_row(40, rows=8)),
    # 200 ops of 2 us, as much between them, and 22 us until the long one; 203 events of 1 us are the profiler's
    RuleCase(
        "PD104",
        "cpu-tiny-ops",
        lambda: host(*tiny_ops()),
        (
            ExpectedFinding(
                "medium",
                820_000,
                (0, None, 820_000),
                title="201 a step, 2.0 us each in the median",
                advice="Or try torch.compile(model)",
                confidence=0.6,
                evidence={
                    "in short pieces of ops": 400_000,
                    "between ops": 420_000,
                    "of it by the profiler's cost of an event": 820_000 - 201_000,
                    "the line where calling ops takes most time": None,
                },
            ),
        ),
        via_file=True,
    ),
    # 203 events for 100 us, 202 of them in that time; but for one of 200 ops, all but one in 201, the loop is gone
    RuleCase(
        "PD104",
        "cpu-a-loop-in-a-capture",
        loop,
        (
            ExpectedFinding(
                "medium",
                738_000,
                # At most what is not the long op: 900 us without the profiler less 180. Of the time of calling ops 22
                # us are behind the line.
                (0, round((820_000 - round(202 * 100_000 / 203)) * 199 / 200 * 798 / 820), 720_493),
                location="train.py:7",
                title="most of them in a loop at train.py:7",
                advice="Let one op do",
                confidence=0.8,
                evidence={"time of calling ops that it takes": 97.3},
            ),
        ),
        base(900),
    ),
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
    ),
    RuleCase("PD104", "cpu-single-numbers-for-a-tenth", lambda: loop_over_shapes([], [], every=0.5), facts=base(900)),
    RuleCase("PD104", "cpu-few-single-numbers", lambda: loop_over_shapes([], [], count=90), facts=base(900)),
    RuleCase("PD104", "cpu-lists-for-a-short-while", lambda: python_gap(95, lists=0.4), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-no-more-than-the-step",
        loop,
        (
            ExpectedFinding(
                "medium",
                492_000,
                (0, round((820_000 - round(202 * 400_000 / 203)) * 199 / 200 * 798 / 820), 421_970),
                location="train.py:7",
            ),
        ),
        base(600),
    ),
    RuleCase(
        "PD104",
        "cpu-layers-are-no-loop",
        lambda: loop("aten::linear"),
        (
            ExpectedFinding(
                "medium",
                738_000,
                (0, None, 720_493),
                location="train.py:7",
                advice="bigger batch",
                evidence={"time of calling ops that it takes": 97.3},
            ),
        ),
        base(900),
    ),
    RuleCase(
        "PD104",
        "cpu-several-lines",
        lambda: loop(until=390),
        (
            ExpectedFinding(
                "medium",
                738_000,
                (0, None, 720_493),
                location="train.py:7",
                evidence={"the line where calling ops takes most time": "train.py:7"},
            ),
        ),
        base(900),
    ),
    RuleCase(
        "PD104",
        "cpu-without-steps",
        lambda: without_steps(),
        (ExpectedFinding("medium", 820_000, title="201 in the recording"),),
    ),
    RuleCase(  # 16 cells of 50 us and a product of 100 us
        "PD104",
        "cpu-cells-of-an-lstm",
        cell_loop,
        (
            ExpectedFinding(
                "medium",
                950_000,
                tuple(round(950_000 * 800 / 900 * saved) for saved in (0, 0.62, 0.84)),  # type: ignore[arg-type]
                location="model.py:4",
                title="nn.LSTMCell is called 16 times a step",
                fix="nn.LSTM(..., batch_first=True)",
            ),
        ),
        base(950),
    ),
    RuleCase(
        "PD104",
        "cpu-an-lstm-step-by-step",
        lambda: module_loop(14),
        (
            ExpectedFinding(
                "medium",
                950_000,
                location="model.py:4",
                title="nn.LSTM is called 14 times a step in a loop, for one step",
            ),
        ),
        base(950),
    ),
    RuleCase(
        "PD104",
        "cpu-a-gru-step-by-step",
        lambda: module_loop(14, op="gru"),
        (
            ExpectedFinding(
                "medium",
                950_000,
                location="model.py:4",
                title="nn.GRU is called 14 times",
                advice="in place of a call for each",
            ),
        ),
        base(950),
    ),
    RuleCase("PD104", "cpu-an-lstm-over-sequences", lambda: module_loop(14, (32, 72, 7)), facts=base(950)),
    RuleCase(
        "PD104",
        "cpu-an-rnn-step-by-step",
        lambda: module_loop(14, (1, 32, 7), op="rnn_tanh", batch_first=False),
        (ExpectedFinding("medium", 950_000, location="model.py:4", title="nn.RNN is called 14 times"),),
        base(950),
    ),
    RuleCase("PD104", "cpu-few-steps", lambda: module_loop(6), facts=base(950)),
    RuleCase("PD104", "cpu-a-decoder-step-by-step", lambda: module_loop(14, between="embedding"), facts=base(950)),
    RuleCase(  # 200 events of 1 us in 420 us are the profiler's: a fifth of the step is left, which one line takes
        "PD104",
        "cpu-a-loop-of-less-weight",
        lambda: host(*tiny_ops(us=1, every=2)).range(LINE, 0, 400),
        (ExpectedFinding("medium", 336_000, location="train.py:7", title="most of them in a loop at train.py:7"),),
        base(800),
    ),
    RuleCase("PD104", "cpu-less-weight-without-a-line", lambda: host(*tiny_ops(us=1, every=2)), facts=base(800)),
    RuleCase(
        "PD104",
        "cpu-python-at-a-line",
        python_gap,
        (
            ExpectedFinding(
                "medium",
                600_000,
                (0, None, 600_000),
                location="train.py:9",
                title="No op runs for 60% of the step: Python, most at train.py:9",
                advice="Work on whole arrays",
                evidence={"of it at this line": 100.0, "of it in torch.tensor": 0.0},
            ),
        ),
        base(1000),
    ),
    RuleCase(  # frames name the line where their function begins
        "PD104",
        "cpu-python-at-unknown-lines-of-a-function",
        lambda: python_gap(line=None, frame="train.py(30): weigh"),
        (ExpectedFinding("medium", 600_000, location="train.py:30", title="most at lines behind train.py:30"),),
        base(1000),
    ),
    RuleCase(
        "PD104", "cpu-a-break-of-a-function", lambda: python_gap(90, None, frame="train.py(30): w"), facts=base(1000)
    ),
    RuleCase(
        "PD104",
        "cpu-python-in-a-function",
        lambda: python_gap(frame="train.py(30): weigh"),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="Python in weigh, most at train.py:9"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-a-helper-that-a-loop-calls",
        helper_in_a_loop,
        (ExpectedFinding("medium", 820_000, location="train.py:5", title="Python, most at train.py:5, in parse"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-a-helper-of-a-loop-without-a-mark",
        lambda: helper_in_a_loop(is_marked=False),
        (ExpectedFinding("medium", 820_000, location="train.py:3", title="lines behind train.py:3, in parse"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-a-helper-that-is-called-seldom",
        lambda: helper_in_a_loop(20),
        (ExpectedFinding("medium", 820_000, location="train.py:30", title="Python in parse, most at lines behind"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-a-short-helper", lambda: helper_in_a_loop(us=70), facts=base(1000)),
    RuleCase("PD104", "cpu-a-short-helper-without-a-mark", lambda: helper_in_a_loop(us=70, is_marked=False)),
    RuleCase("PD104", "cpu-a-short-helper-called-seldom", lambda: helper_in_a_loop(20, 70), facts=base(1000)),
    RuleCase("PD104", "cpu-a-helper-that-is-called-twice", lambda: helper_in_a_loop(2, 70), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-ops-of-a-helper-that-a-loop-calls",
        lambda: helper_in_a_loop(op=True),
        (ExpectedFinding("medium", 820_000, location="train.py:5", title="in a loop at train.py:5, in parse"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-numpy",
        lambda: python_gap(frame="numpy/fft/_pocketfft.py(324): rfft"),
        (
            ExpectedFinding(
                "medium", 600_000, location="train.py:9", title="above all in rfft", advice="function of torch"
            ),
        ),
        base(1000),
    ),
    RuleCase("PD104", "cpu-a-little-numpy", lambda: python_gap(90, frame="numpy/fft/_pocketfft.py(324): rfft")),
    RuleCase(  # one place, one finding: 500 us of short ops, and 320 us without an op
        "PD104",
        "cpu-python-and-ops-in-one-function",
        lambda: python_beside_ops("search"),
        (
            ExpectedFinding(
                "medium", 820_000, location="train.py:7", title="Little is computed: Python, and many ops: 201 a step"
            ),
        ),
    ),
    RuleCase(
        "PD104",
        "cpu-python-and-ops-in-two-functions",
        lambda: python_beside_ops("report"),
        (
            ExpectedFinding("medium", 499_500, location="train.py:7", title="on calling ops, not on computing"),
            ExpectedFinding("medium", 320_500, location="train.py:9", title="No op runs for 32% of the step"),
        ),
    ),
    RuleCase(
        "PD104",
        "cpu-ops-of-one-size-in-a-loop",
        ops_in_a_loop,
        (
            ExpectedFinding(
                "medium",
                640_000,
                (0, None, 640_000),
                location="train.py:3",
                title="A loop calls 64 ops a step on tensors of one size",
                advice="torch.bincount for counts",
            ),
        ),
    ),
    RuleCase("PD104", "cpu-ops-of-many-sizes-in-a-loop", lambda: ops_in_a_loop(sizes=8)),
    RuleCase("PD104", "cpu-an-op-in-each-layer", lambda: ops_in_a_loop(calls_each=4)),
    RuleCase("PD104", "cpu-products-in-a-loop", lambda: ops_in_a_loop("aten::bmm")),
    RuleCase(
        "PD104",
        "cpu-an-environment",
        lambda: python_gap(frame="gymnasium/wrappers/common.py(393): step"),
        (
            ExpectedFinding(
                "medium",
                600_000,
                location="train.py:9",
                title="environments are stepped one by one",
                fix="AsyncVectorEnv",
            ),
        ),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-files",
        lambda: python_gap(frame="<built-in method write of _io.BufferedWriter object at 0x7f286cea40>"),
        (
            ExpectedFinding(
                "medium", 600_000, location="train.py:9", title="files are written", advice="from another thread"
            ),
        ),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-python-beside-a-sleep",
        lambda: python_gap(frame="train.py(30): weigh", rest="<built-in function sleep>"),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="Python in weigh"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-sleep", lambda: python_gap(frame="<built-in function sleep>"), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-the-line-with-the-time-and-not-with-the-ops",
        lambda: slow_and_quick_calls(),
        (ExpectedFinding("medium", 802_000, (0, None, 802_000), location="train.py:9"),),
    ),
    RuleCase(
        "PD104",
        "cpu-a-loop-beside-an-op-that-runs-many",
        lambda: op_that_runs_many(calls=120),
        (
            ExpectedFinding(
                "medium",
                490_000,
                (0, None, 490_000),
                location="train.py:7",
                title="121 a step, 2.0 us each in the median, most of them in a loop at train.py:7",
            ),
        ),
    ),
    RuleCase("PD104", "cpu-an-op-that-runs-many", op_that_runs_many),
    RuleCase(
        "PD104",
        "cpu-ops-that-run-a-few",
        lambda: loop_of_nested_ops(),
        (ExpectedFinding("medium", 820_000, location="train.py:7", title="101 a step, 6.0 us each in the median"),),
    ),
    RuleCase(
        "PD104",
        "cpu-cells-beside-a-packed-sequence",
        lambda: packed_sequence(cell_loop(10), 10),
        (ExpectedFinding("medium", 950_000, location="model.py:4", title="nn.LSTMCell is called 10 times a step"),),
        base(950),
    ),
    RuleCase(  # all it takes is that of the op and its backward pass
        "PD104", "cpu-the-backward-pass-of-an-op-that-runs-many", lambda: op_that_runs_many(backward=100)
    ),
    RuleCase(
        "PD104",
        "cpu-a-loop-beside-the-ops-of-a-loader",
        lambda: loop().range(WAIT, 820, 150),
        (ExpectedFinding("medium", 820_000, location="train.py:7"),),
    ),
    RuleCase("PD104", "cpu-the-ops-of-a-loader", lambda: loop().range(WAIT, 0, 820)),
    RuleCase("PD104", "cpu-cells-of-a-packed-sequence", packed_sequence, facts=base(950)),
    RuleCase(
        "PD104",
        "cpu-writes-in-pieces",
        lambda: written_in_pieces(),
        (ExpectedFinding("medium", 450_000, (0, None, 450_000), location="train.py:9", title="for 20% of the step"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-writes-in-short-pieces", lambda: written_in_pieces(90), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-child-process",
        lambda: python_gap(frame="subprocess.py(548): run"),
        (
            ExpectedFinding(
                "medium", 600_000, location="train.py:9", title="waits for another process", fix="subprocess.Popen"
            ),
        ),
        base(1000),
    ),
    RuleCase("PD104", "cpu-a-short-sleep", lambda: python_gap(90, frame="<built-in function sleep>"), facts=base(1000)),
    RuleCase("PD104", "cpu-a-short-process", lambda: python_gap(90, frame="subprocess.py(548): run"), facts=base(1000)),
    RuleCase(  # what `perfdoctor run` itself does around a torch call of the evidence window
        "PD104",
        "cpu-hooks-of-the-recording",
        lambda: python_gap(
            frame="/site-packages/_perfdoctor_inject/source_lines.py(36): __torch_function__",
            rest="train.py(30): weigh",
        ),
        (ExpectedFinding("medium", 600_000, location="train.py:30", title="Python in weigh"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-an-environment-without-a-line",
        lambda: python_gap(line=None, frame="gymnasium/wrappers/common.py(393): step"),
        facts=base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-a-short-function",
        lambda: python_gap(140, frame="train.py(30): weigh"),
        (ExpectedFinding("low", 140_000, location="train.py:9", title="Python in weigh"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-short-writes",
        lambda: python_gap(140, frame="<built-in method write of _io.BufferedWriter object at 0x7f286cea40>"),
        (ExpectedFinding("low", 140_000, location="train.py:9", title="files are written"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-short-python-at-many-lines", lambda: python_gap_of_lines(140), facts=base(1000)),
    RuleCase(
        "PD104", "cpu-a-break-of-the-framework", lambda: python_gap(90, frame="train.py(30): weigh"), facts=base(1000)
    ),
    RuleCase(  # on a busy machine the framework's own breaks are as long
        "PD104", "cpu-a-break-among-long-ones", lambda: python_between_slow_calls(9), facts=base(1000)
    ),
    RuleCase(
        "PD104",
        "cpu-a-break-among-short-ones",
        lambda: python_between_slow_calls(3),
        (ExpectedFinding("medium", 253_000, location="train.py:9", title="No op runs for 25% of the step: Python"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-a-break-of-one-step", lambda: python_in_steps(1), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-python-in-most-steps",
        lambda: python_in_steps(3),
        (ExpectedFinding("medium", 360_000, location="train.py:9", title="No op runs for 36% of the step: Python"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-waits-for-a-core-in-all-steps", lambda: python_in_steps(5), facts=waits_for_core(1)),
    RuleCase(  # most of the waits lie in ops
        "PD104",
        "cpu-python-beside-waits-for-a-core",
        lambda: python_in_steps(5),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="No op runs for 60% of the step: Python"),),
        waits_for_core(4),
    ),
    RuleCase(
        "PD104",
        "cpu-siblings",
        siblings,
        (
            ExpectedFinding(
                "medium", 640_000, (0, None, 640_000), location="train.py:3", title="FeatureNet, are called"
            ),
        ),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-siblings-of-rows",
        lambda: siblings(18, "select"),
        (ExpectedFinding("medium", 720_000, (0, None, 720_000), location="train.py:3", title="called one by one, 18"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-arrays-that-grow-in-front",
        lambda: python_gap(frame=_APPEND.replace("append", "insert")),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="arrays are copied to change"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-arrays-that-shrink",
        lambda: python_gap(500, frame=_APPEND.replace("append", "delete")),
        (ExpectedFinding("medium", 500_000, location="train.py:9", title="arrays are copied to change"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-layers-one-behind-the-other", lambda: siblings(between="add"), facts=base(1000)),
    RuleCase("PD104", "cpu-few-siblings", lambda: siblings(8), facts=base(1000)),
    RuleCase("PD104", "cpu-large-siblings", lambda: siblings(width=8000), facts=base(1000)),
    RuleCase("PD104", "cpu-slices-of-one-module", lambda: siblings(numbered=False), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-arrays-that-grow",
        lambda: python_gap(frame=_APPEND),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="arrays are copied to change"),),
        base(1000),
    ),
    RuleCase("PD104", "cpu-a-short-array-that-grows", lambda: python_gap(60, frame=_APPEND), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-a-short-wait-without-a-line",
        lambda: python_gap(140, None, frame="queue.py(154): get"),
        facts=base(1000),
    ),
    RuleCase("PD104", "cpu-short-lists-at-many-lines", lambda: python_gap_of_lines(140, lists=0.6), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-hooks-of-the-recording-alone",
        lambda: python_gap(
            frame="/site-packages/_perfdoctor_inject/source_lines.py(36): __torch_function__",
            rest="/site-packages/_perfdoctor_inject/user_code.py(82): user_line",
        ),
        facts=base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-lists-become-tensors",
        lambda: python_gap(lists=0.6),
        (ExpectedFinding("medium", 600_000, location="train.py:9", title="lists become", fix="np.stack(rows)"),),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-making-lists-takes-longer",
        lambda: python_gap(lists=0.4),
        (
            ExpectedFinding(
                "medium", 600_000, location="train.py:9", title="lists become", advice="from where they are made"
            ),
        ),
        base(1000),
    ),
    RuleCase(
        "PD104",
        "cpu-python-in-several-whiles",
        lambda: (
            host(("aten::mm", 0, 100), ("aten::mm", 300, 100), ("aten::mm", 600, 390))
            .range("@train.py:9 sample", 100, 200)
            .range("@train.py:8 sample", 400, 200)
        ),
        (ExpectedFinding("medium", 400_000, (0, None, 200_000), location="train.py:9", title="for 40% of the step"),),
        base(1000),
    ),
    RuleCase(  # an event of 1 us is the profiler's
        "PD104",
        "cpu-python-without-a-capture",
        python_gap,
        (ExpectedFinding("medium", 600_000, location="train.py:9", confidence=0.6),),
    ),
    RuleCase("PD104", "cpu-python-at-no-known-line", lambda: python_gap(line=None), facts=base(1000)),
    RuleCase("PD104", "cpu-python-of-no-weight", lambda: python_gap(us=95), facts=base(1000)),
    RuleCase(
        "PD104",
        "cpu-python-of-the-loader",
        lambda: python_gap().range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 600),
        facts=base(1000),
    ),
    RuleCase(  # workers are started and ended there
        "PD104", "cpu-python-at-the-loop-over-workers", python_gap, facts=base(1000) | loop_over_loader(2)
    ),
    RuleCase(
        "PD104",
        "cpu-python-at-a-loop-without-workers",
        python_gap,
        (ExpectedFinding("medium", 600_000, location="train.py:9"),),
        base(1000) | loop_over_loader(0),
    ),
    RuleCase(
        "PD104",
        "cpu-python-of-an-optimizer",
        lambda: python_gap().range("Optimizer.step#SGD.step", 90, 620),
        facts=base(1000),
    ),
    RuleCase("PD104", "cpu-few-cells", lambda: cell_loop(7)),
    RuleCase("PD104", "cpu-cells-of-no-weight", lambda: cell_loop(us=2)),
    RuleCase("PD104", "cpu-cells-of-a-gru", lambda: cell_loop(name="aten::gru_cell")),  # nn.GRU is hardly faster
    RuleCase("PD104", "cpu-cells-of-an-rnn", lambda: cell_loop(name="aten::rnn_tanh_cell")),  # nor is nn.RNN
    RuleCase(
        "PD104", "cpu-in-an-optimizer-of-the-users", lambda: host(*tiny_ops()).range("Optimizer.step#Own.step", 0, 900)
    ),
    RuleCase(
        "PD104",
        "cpu-compiled-already",
        lambda: host(*tiny_ops()),
        (ExpectedFinding("medium", 820_000, title="201 a step", advice=NO_COMPILE),),
        {"compile": {"graphs": 3, "graph_breaks": 1}},
    ),
    RuleCase(
        "PD104",
        "cpu-beside-lbfgs",
        lambda: host(*tiny_ops()),
        (ExpectedFinding("medium", 820_000, title="201 a step", advice=NO_COMPILE),),
        {"optimizers": [{"class": "LBFGS"}]},
    ),
    RuleCase("PD104", "cpu-long-ops", lambda: host(*((("aten::add", 9.0 * row, 8.0)) for row in range(110)))),
    RuleCase("PD104", "cpu-a-toy", lambda: host(*tiny_ops(count=98, us=4, every=8))),
    RuleCase(
        "PD104",
        "cpu-pauses-are-the-programs-own",
        lambda: host(*tiny_ops(count=110, us=0.5, every=1), ("aten::t", 980, 1)),
    ),
    RuleCase(
        "PD104", "cpu-the-profilers-part", lambda: host(*tiny_ops(us=0.5, every=1.5, rest="aten::add")), facts=base(700)
    ),
    RuleCase("PD104", "cpu-compiles", compiling_program),
    RuleCase("PD104", "cpu-before-the-first-step", tiny_ops_before_the_steps),
    RuleCase(
        "PD104",
        "cpu-in-each-of-two-steps",
        lambda: host(*tiny_ops(), steps=2),
        (ExpectedFinding("medium", 835_000, title="201 a step"),),  # and half of the 30 us between the two
    ),
    RuleCase(
        "PD104",
        "cpu-in-one-of-two-steps",
        lambda: host(*tiny_ops()).step(STEP_US, STEP_US).op("aten::mm", STEP_US + 5, 970),
        (ExpectedFinding("medium", 427_500, title="101 a step"),),
    ),
    RuleCase("PD104", "cpu-in-the-optimizer", lambda: host(*tiny_ops()).range("Optimizer.step#Lion.step", 0, 800)),
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


def saved_by_fused(own_ns: int, *remaining: float) -> tuple[int, int, int]:
    """What is saved as expected and at most, by the shares that remain; at least nothing, as it is not replayed."""
    expected, high = (round(own_ns * (1 - share)) for share in remaining)
    return 0, expected, high


def optimizer_settings(**values: object) -> dict[str, Any]:
    return {"optimizers": [{"class": "AdamW", **values}]}


PD303 = [
    RuleCase(
        "PD303",
        "cpu-tensor-by-tensor",
        optimizer_step,
        (
            ExpectedFinding(
                "medium",
                560_000,
                (0, None, 560_000 * 3 // 4),  # at best a fused step takes a quarter of the time
                location="train.py:9",
                title="AdamW goes over the parameters 7 times tensor by tensor: 140 ops a step",
                fix="torch.optim.AdamW(..., fused=True)",
                evidence={"longest pass": 14.3, "of it by the profiler's cost of an event": 560_000 - 143_000},
            ),
        ),
        via_file=True,
    ),
    # 144 events for 100 us, 143 of them in the optimizer's step
    RuleCase(
        "PD303",
        "cpu-in-a-capture",
        optimizer_step,
        (
            ExpectedFinding(
                "medium",
                504_000,
                saved_by_fused(560_000 - round(143 * 100_000 / 144), 0.3, 0.25),
                location="train.py:9",
                evidence={"foreach, as captured": "no", "fused, as captured": "no"},
            ),
        ),
        {**base(900), **optimizer_settings(foreach=False, fused=False)},
    ),
    RuleCase(
        "PD303",
        "cpu-foreach",
        lambda: optimizer_step(tuple(f"_foreach_{name}" for name in PRIMITIVES), tensors=1, us=30),
        (
            ExpectedFinding(
                "medium",
                217_000,
                (0, None, round(217_000 * 0.85)),
                location="train.py:9",
                title="7 times with foreach: 7 ops a step",
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-momentum",
        lambda: optimizer_step(("mul_", "add_", "add_"), tensors=40, optimizer="SGD", steps=2),
        (ExpectedFinding("medium", 480_000, location="train.py:9", title="SGD goes over the parameters 3 times"),),
    ),
    RuleCase(
        "PD303",
        "cpu-adagrad",
        lambda: optimizer_step(("add_", "addcmul_", "sqrt", "addcdiv_"), tensors=30, optimizer="Adagrad"),
        (
            ExpectedFinding(
                "medium", 480_000, location="train.py:9", title="4 times", fix="torch.optim.Adagrad(..., fused=True)"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-another-one-is-fused",
        lambda: optimizer_step(optimizer="Adam"),
        (ExpectedFinding("medium", 560_000, location="train.py:9", evidence={"fused, as captured": None}),),
        optimizer_settings(fused=True),
    ),
    RuleCase("PD303", "cpu-fused", lambda: optimizer_step(("_fused_adamw_",), tensors=1, us=500)),
    RuleCase("PD303", "cpu-fused-as-captured", optimizer_step, facts=optimizer_settings(fused=True)),
    RuleCase(  # calling ops takes longer than they do
        "PD303",
        "cpu-plain-sgd-of-small-tensors",
        lambda: optimizer_step(("add_",), tensors=140, optimizer="SGD"),
        (
            ExpectedFinding(
                "medium", 560_000, (0, None, 336_000), location="train.py:9", title="SGD goes over the parameters once"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-plain-sgd-of-large-tensors",
        lambda: optimizer_step(("add_",), tensors=14, us=40, optimizer="SGD"),
        (
            ExpectedFinding(
                "info", 574_000, location="train.py:9", title="SGD takes 57% of the step", advice="less often"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-foreach-of-small-tensors",
        lambda: optimizer_step(optimizer="RMSprop"),
        (
            ExpectedFinding(
                "medium",
                560_000,
                (0, None, round(560_000 * 0.47)),
                location="train.py:9",
                fix="RMSprop(..., foreach=True)",
            ),
        ),
    ),
    RuleCase(  # by the captured sizes: foreach would be slower
        "PD303",
        "cpu-no-foreach-of-large-tensors",
        lambda: optimizer_step(optimizer="RMSprop"),
        (ExpectedFinding("info", 560_000, location="train.py:9", title="RMSprop takes"),),
        {"optimizers": [{"class": "RMSprop", "tensors": 20, "parameters": 20 * 600_000}]},
    ),
    RuleCase(
        "PD303",
        "cpu-lbfgs",
        lambda: optimizer_step(("dot", "add_"), tensors=60, optimizer="LBFGS"),
        (ExpectedFinding("info", 480_000, location="train.py:9", advice="fewer updates"),),
    ),
    RuleCase(
        "PD303",
        "cpu-own-time-as-captured",
        optimizer_step,
        (
            ExpectedFinding(
                "medium",
                504_000,
                saved_by_fused(300_000, 0.3, 0.25),
                location="model.py:3",
                evidence={"used at": "train.py:9", "of the step without the profiler": 33.3},
            ),
        ),
        {**base(900), **optimizer_settings(own_ns=300_000, created={"file": "model.py", "line": 3, "function": "f"})},
    ),
    RuleCase(  # 560 of 760 us are the optimizer's
        "PD303",
        "cpu-closure",
        lambda: with_closure(marked=True),
        (ExpectedFinding("medium", 560_000, (0, None, 420_000), title="140 ops a step", location="train.py:9"),),
    ),
    RuleCase(
        "PD303",
        "cpu-closure-of-another-capture",
        lambda: with_closure(marked=False),
        (ExpectedFinding("medium", 560_000, (0, None, 420_000), title="140 ops a step", location="train.py:9"),),
    ),
    RuleCase("PD303", "cpu-closure-of-nearly-all", lambda: with_closure(marked=True, tensors=1)),
    RuleCase("PD303", "cpu-closure-of-nearly-all-not-marked", lambda: with_closure(marked=False, tensors=1)),
    RuleCase(
        "PD303", "cpu-little-as-captured", optimizer_step, facts={**base(900), **optimizer_settings(own_ns=40_000)}
    ),
    RuleCase("PD303", "cpu-small-share", lambda: optimizer_step(tensors=2)),
    RuleCase(  # 42 us in 35 ops, nothing of which is the profiler's
        "PD303", "cpu-four-percent-of-the-step", lambda: optimizer_step(tensors=5, us=0.2), facts=base(1000)
    ),
    RuleCase("PD303", "cpu-few-large-tensors", lambda: optimizer_step(("add_",), tensors=4, us=130, optimizer="SGD")),
    RuleCase(
        "PD303", "cpu-compiled", lambda: optimizer_step(("Torch-Compiled Region: 0/0",), tensors=1, us=500, prefix="")
    ),
    RuleCase("PD303", "cpu-fused-beside-a-closure", lambda: with_closure(marked=True, names=("_fused_adamw_",))),
    RuleCase("PD303", "cpu-closures-of-lbfgs", closures_of_lbfgs),
    RuleCase("PD303", "cpu-before-the-first-step", updates_before_the_steps),
    RuleCase("PD303", "cpu-average-of-weights", lambda: optimizer_step(("lerp_", "mul_"), tensors=40, optimizer=None)),
    RuleCase("PD303", "cpu-mostly-the-profilers", lambda: optimizer_step(us=0.2), facts=base(850)),
]

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


PD304 = [
    RuleCase(
        "PD304",
        "cpu-fills-and-additions",
        zero_grad,
        (
            ExpectedFinding(
                "medium",
                120_000,
                (0, None, 120_000),
                location="train.py:5",
                title="Gradients are filled with zeros: 12 fills a step",
                fix="set_to_none=True",
                evidence={"filling": 60_000, "adding to zeros": 60_000},
            ),
        ),
        via_file=True,
    ),
    # 40 events for 100 us, 24 of them fills and additions
    RuleCase(
        "PD304",
        "cpu-in-a-capture",
        zero_grad,
        (ExpectedFinding("medium", 108_000, (0, 120_000 - round(24 * 100_000 / 40), 108_000), location="train.py:5"),),
        base(900),
    ),
    RuleCase(
        "PD304",
        "cpu-accumulated-over-two-passes",
        lambda: zero_grad(adds=24),
        (ExpectedFinding("low", 60_000, location="train.py:5", evidence={"adding to zeros": 0}),),
    ),
    RuleCase(
        "PD304",
        "cpu-foreach",
        lambda: zero_grad(foreach=True, adds=0),
        (ExpectedFinding("low", 60_000, location="train.py:5", title="12 fills"),),
    ),
    RuleCase("PD304", "cpu-none", lambda: zero_grad(fills=0)),
    RuleCase("PD304", "cpu-a-toy", lambda: zero_grad(fills=9, adds=9)),
    RuleCase("PD304", "cpu-less-than-a-percent", lambda: zero_grad(us=0.4)),
    RuleCase("PD304", "cpu-zeros-elsewhere", lambda: host(*[("aten::zero_", 20.0 * row, 10) for row in range(20)])),
]
