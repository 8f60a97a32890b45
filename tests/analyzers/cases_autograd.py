"""Cases of rules about autograd's state and switches for debugging: PD308, PD503, PD507, PD514, PD517 and PD518."""

from __future__ import annotations

from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

MS = 1_000_000
LINE = {"file": "train.py", "line": 12, "function": "main"}


def switch(name: str, steps: int = 10, of_steps: int = 10, step_ns: int | None = None) -> dict[str, Any]:
    """Facts of a switch that was on."""
    return {
        "debug_switches": [
            {"switch": name, "steps": steps, "of_steps": of_steps, "step_ns": step_ns, "location": LINE}
        ]
    }


def training(checks: int = 0, device: str | None = None) -> TraceBuilder:
    """A step of 10 ms: 4 ms forward, 5 ms backward, and so many checks of gradients for NaN, 100 us each."""
    trace = TraceBuilder(device=device).step(0, 10_000)
    trace.op("aten::addmm", 100, 4000, sequence=7)
    trace.op("autograd::engine::evaluate_function: AddmmBackward0", 4200, 5000, sequence=7)
    trace.op("AddmmBackward0", 4210, 3000, sequence=7)
    for index in range(checks):
        start = 7300 + 110 * index
        trace.op("aten::isnan", start, 50).op("aten::item", start + 60, 40)
    return trace.range("Optimizer.step#SGD.step", 9400, 400)


def on_gpu() -> TraceBuilder:
    """A step of 1 ms of two kernels: between them the GPU waits 200 us for the second launch."""
    trace = TraceBuilder().step(0, 1000)
    trace.op("aten::mm", 0, 420).kernel("first", 10, 390, launch_us=5)
    return trace.op("aten::mm", 590, 400).kernel("second", 600, 390, launch_us=595)


def on_several_gpus() -> TraceBuilder:
    """A step of 1 ms, half of it an all-reduce that nothing overlaps."""
    trace = TraceBuilder(rank=0, world_size=2).step(0, 1000)
    trace.op("aten::mm", 0, 420).kernel("first", 10, 390, launch_us=5)
    return trace.op("c10d::allreduce_", 400, 20).kernel("ncclDevKernel_AllReduce", 410, 500, launch_us=405)


PD503 = [
    RuleCase(
        "PD503",
        "stacks-and-checks",
        lambda: training(checks=10),
        (
            ExpectedFinding(
                "high",
                4 * MS,
                (3_200_000, 4 * MS, 4 * MS),
                location="train.py:12",
                title="Anomaly detection is on: 40% of the step",
                fix="set_detect_anomaly(False)",
                evidence={"checks for NaN per step": 1_000_000, "gradients checked per step": 10},
            ),
        ),
        switch("anomaly detection", step_ns=3 * MS),
    ),
    RuleCase(
        "PD503",
        "checks-alone-in-a-trace-without-facts",
        lambda: training(checks=10),
        (ExpectedFinding("high", MS, (MS, None, MS), title="10% of the step and more"),),
    ),
    RuleCase(
        "PD503",
        "gradcheck-in-every-step",
        training,
        (ExpectedFinding("high", 2 * MS, location="train.py:12", title="gradcheck", fix="in a test"),),
        switch("gradcheck", step_ns=2 * MS),
    ),
    RuleCase(
        "PD503",
        "launches-block",
        on_gpu,
        (ExpectedFinding("medium", 200_000, (0, None, 200_000), fix="unset CUDA_LAUNCH_BLOCKING"),),
        {"environment": {"CUDA_LAUNCH_BLOCKING": "1"}},
    ),
    RuleCase(
        "PD503",
        "collectives-are-checked",
        on_several_gpus,
        (ExpectedFinding("info", 0, title="TORCH_DISTRIBUTED_DEBUG=DETAIL"),),
        {"environment": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "world_size": 2},
    ),
    RuleCase("PD503", "nothing-on", training),
    RuleCase(
        "PD503", "anomaly-detection-in-one-step-of-ten", training, facts=switch("anomaly detection", 1, 10, 3 * MS)
    ),
    RuleCase("PD503", "gradcheck-in-the-first-step", training, facts=switch("gradcheck", 1, 10, 2 * MS)),
    RuleCase("PD503", "launches-do-not-block", on_gpu, facts={"environment": {"CUDA_LAUNCH_BLOCKING": "0"}}),
    RuleCase(
        "PD503",
        "one-rank-alone",
        training,
        facts={"environment": {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "world_size": 1},
    ),
    RuleCase(  # the program itself looks for NaN in its loss
        "PD503",
        "isnan-of-the-program",
        lambda: training().op("aten::isnan", 9300, 50).op("aten::item", 9360, 30),
    ),
]
