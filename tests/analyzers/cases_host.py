"""Cases of programs on the CPU alone, for rules about kernels that have findings on them, too: PD104, PD303, PD304."""

from __future__ import annotations

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


# --- PD104 ------------------------------------------------------------------------------------------------------------

LINE = "@train.py:7 scaled"


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


def compiling_program() -> TraceBuilder:
    return host(*tiny_ops()).op("_compile.compile_inner (dynamo_timed)", 0, 900, thread=2)


PD104 = [
    # 200 ops of 2 us, as much between them, and 22 us until the long one; 203 events of 1 us are the profiler's
    RuleCase(
        "PD104",
        "cpu-tiny-ops",
        lambda: host(*tiny_ops()),
        (
            ExpectedFinding(
                "high",
                820_000,
                (0, None, 820_000),
                title="201 a step, 2.0 us each in the median",
                advice="bigger batch",
                fix="torch.compile",
                confidence=0.6,
                evidence={
                    "in short pieces of ops": 400_000,
                    "between ops": 420_000,
                    "of it by the profiler's cost of an event": 820_000 - 201_000,
                    "the line that calls most ops": None,
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
                "high",
                738_000,
                (0, round((820_000 - round(202 * 100_000 / 203)) * (1 - (1 - 200 / 201 * 199 / 200))), 738_000),
                location="train.py:7",
                title="most of them in a loop at train.py:7",
                advice="Let one op do",
                confidence=0.8,
                evidence={"ops that it calls": 99.5},
            ),
        ),
        base(900),
    ),
    RuleCase(
        "PD104",
        "cpu-no-more-than-the-step",
        loop,
        (
            ExpectedFinding(
                "high",
                492_000,
                (0, round((820_000 - round(202 * 400_000 / 203)) * 200 / 201 * 199 / 200), 492_000),
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
                "high", 738_000, (0, None, 738_000), advice="bigger batch", evidence={"ops that it calls": 99.5}
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
                "high", 738_000, (0, None, 738_000), evidence={"the line that calls most ops": "train.py:7"}
            ),
        ),
        base(900),
    ),
    RuleCase(
        "PD104", "cpu-without-steps", lambda: without_steps(), (ExpectedFinding("high", 820_000, title="201 a trace"),)
    ),
    RuleCase("PD104", "cpu-long-ops", lambda: host(*((("aten::add", 9.0 * row, 8.0)) for row in range(110)))),
    RuleCase("PD104", "cpu-a-toy", lambda: host(*tiny_ops(count=98, us=4, every=8))),
    RuleCase(
        "PD104",
        "cpu-pauses-are-the-programs-own",
        lambda: host(*tiny_ops(count=110, us=0.5, every=1), ("aten::t", 980, 1)),
    ),
    RuleCase(
        "PD104",
        "cpu-the-profilers-part",
        lambda: host(*tiny_ops(us=0.5, every=1.5, rest="aten::add")),
        facts=base(700),
    ),
    RuleCase("PD104", "cpu-compiles", compiling_program),
    RuleCase(
        "PD104",
        "cpu-in-the-optimizer",
        lambda: host(*tiny_ops()).range("Optimizer.step#Lion.step", 0, 800),
    ),
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
    optimizer: str = "AdamW",
    steps: int = 1,
) -> TraceBuilder:
    """A step of an optimizer op by op, 1 us apart, then a long op."""
    ops = [f"aten::{name}" for name in names] * tensors
    end = (us + 1) * len(ops)
    trace = host(
        *((name, (us + 1) * row, us) for row, name in enumerate(ops)), ("aten::mm", end + 20, 970 - end), steps=steps
    )
    for number in range(steps):
        trace.range(f"Optimizer.step#{optimizer}.step", STEP_US * number, end)
        trace.range("@train.py:9 train", STEP_US * number, end)
    return trace


def optimizer_settings(**values: object) -> dict[str, Any]:
    return {"optimizers": [{"class": "AdamW", **values}]}


PD303 = [
    RuleCase(
        "PD303",
        "cpu-tensor-by-tensor",
        optimizer_step,
        (
            ExpectedFinding(
                "high",
                560_000,
                (0, None, 560_000),
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
                "high",
                504_000,
                (0, round((560_000 - round(143 * 100_000 / 144)) * (1 - 1 / 7)), 504_000),
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
                "medium", 217_000, (0, None, 217_000), location="train.py:9", title="7 times with foreach: 7 ops a step"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-momentum",
        lambda: optimizer_step(("mul_", "add_", "add_"), tensors=40, optimizer="SGD", steps=2),
        (ExpectedFinding("high", 480_000, location="train.py:9", title="SGD goes over the parameters 3 times"),),
    ),
    RuleCase(
        "PD303",
        "cpu-adagrad",
        lambda: optimizer_step(("add_", "addcmul_", "sqrt", "addcdiv_"), tensors=30, optimizer="Adagrad"),
        (
            ExpectedFinding(
                "high", 480_000, location="train.py:9", title="4 times", fix="torch.optim.Adagrad(..., fused=True)"
            ),
        ),
    ),
    RuleCase(
        "PD303",
        "cpu-another-one-is-fused",
        lambda: optimizer_step(optimizer="Adam"),
        (ExpectedFinding("high", 560_000, location="train.py:9", evidence={"fused, as captured": None}),),
        optimizer_settings(fused=True),
    ),
    RuleCase("PD303", "cpu-fused", lambda: optimizer_step(("_fused_adamw_",), tensors=1, us=500)),
    RuleCase("PD303", "cpu-fused-as-captured", optimizer_step, facts=optimizer_settings(fused=True)),
    RuleCase("PD303", "cpu-plain-sgd-is-one-pass", lambda: optimizer_step(("add_",), tensors=140, optimizer="SGD")),
    RuleCase("PD303", "cpu-none-is-known-to-be-faster", lambda: optimizer_step(optimizer="RMSprop")),
    RuleCase("PD303", "cpu-small-share", lambda: optimizer_step(tensors=2)),
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
