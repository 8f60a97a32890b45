"""What a step takes on another device, or what it usually takes on its own: a replay in which GPU items get new times.

CPU work takes as long as it was recorded, or as many times as long as the user says. Without a trusted replay the
account bounds the step: each of its parts takes as many times as long as the work in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np

from perfdoctor.analysis.kernels.device_scaling import CPU, SCALES_WITH
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.graph_edges import ACTIVITY
from perfdoctor.savings.graph_nodes import ITEM_END, ITEM_START
from perfdoctor.savings.what_if import Replay
from perfdoctor.trace.arrays import FloatArray, Int8Array
from perfdoctor.value_limits import Share

Verdict: TypeAlias = Literal["as usual", "slower", "faster", "unknown"]
# Where the work of less of the GPU's time is known, or the range is nearer than that, nothing is called unusual.
_MIN_KNOWN_SHARE = 0.5
_MIN_FACTOR = 1.25


@frozen_dataclass
class ScalingPart:
    """A part of the step by what its time scales with.

    Attributes:
        scales_with: One of SCALES_WITH.
        now_ns: The part as recorded.
        low_ratio, expected_ratio, high_ratio: How many times as long its work takes on the other device.
    """

    scales_with: Annotated[str, ("enum", SCALES_WITH)]
    now_ns: int
    low_ratio: float
    expected_ratio: float
    high_ratio: float


@frozen_dataclass
class ExpectationGround:
    """What the expectation of some kernels rests on.

    Attributes:
        family: gemm, convolution, attention or memory.
        dtype: The unit on the other device, such as "bf16", or "fp32" for CUDA cores; "any" for memory.
        share: The share (0 to 1) of the GPU's time that these kernels take.
        known_share: The share (0 to 1) of that time whose FLOPs and bytes are known.
        kinds: How many kinds of recorded kernels the table of efficiencies has of them.
        programs: Of how many programs these are.
        of_generation: How many of the kinds were recorded on the generation of the other device.
    """

    family: str
    dtype: str
    share: Share
    known_share: Share
    kinds: int
    programs: int
    of_generation: int


@frozen_dataclass
class ExpectedStep:
    """How long a step is expected to take.

    Attributes:
        now_ns: The step as recorded, without the profiler where that is known; the recording where there are no steps.
        low_ns, expected_ns, high_ns: At best, as expected, at worst.
        basis: "replayed", or "bounded" by the account where no replay is trusted.
        reason: Why no replay is trusted; None where one is.
        parts: The step by what it scales with; adds up to `now_ns`.
    """

    now_ns: int
    low_ns: int
    expected_ns: int
    high_ns: int
    basis: Literal["replayed", "bounded"]
    reason: str | None
    parts: tuple[ScalingPart, ...]


def expect_step(
    step_ns: int,
    split: Mapping[str, int],
    scaling: Int8Array,
    weights_ns: FloatArray,
    ratios: FloatArray,
    replay: Replay | None,
    cpu_scale: float = 1.0,
) -> ExpectedStep:
    """How long a step takes when each GPU item takes some times as long.

    Args:
        step_ns: The step as recorded.
        split: The step by what its time scales with, in ns by name of SCALES_WITH; adds up to `step_ns`.
        scaling: What each GPU item scales with, an index into SCALES_WITH.
        weights_ns: The time of each item in the analysed window.
        ratios: How many times as long each item takes, (n, 3): at best, as expected, at worst.
        replay: The replay of the trace; None where nothing can be replayed.
        cpu_scale: How many times as long the CPU takes.
    """
    parts = tuple(_parts(split, scaling, weights_ns, ratios, cpu_scale))
    trusted = replay is not None and replay.gates.reason is None
    if replay is not None and trusted:
        times = [replay_with_ratios(replay, ratios[:, column], cpu_scale) for column in range(3)]
    else:
        times = _bound_by_account(step_ns, parts)
    reason = "nothing in the recording says what the GPU waits for" if replay is None else replay.gates.reason
    low, expected, high = (round(ns) for ns in times)
    return ExpectedStep(step_ns, low, expected, high, "replayed" if trusted else "bounded", reason, parts)


def replay_with_ratios(replay: Replay, ratios: FloatArray, cpu_scale: float) -> float:
    """How long a step takes when each GPU item takes some times as long, and the CPU's work as well, in ns.

    Other than an `Edit`, this may make items longer.
    """
    graph = replay.graph
    nodes, lag_ns = graph.nodes, graph.lag_ns.astype(np.float64)
    lag_ns[nodes.item_end, ACTIVITY] *= ratios[nodes.item]
    on_cpu = (nodes.kind != ITEM_START) & (nodes.kind != ITEM_END) & (graph.predecessor[:, ACTIVITY] >= 0)
    lag_ns[on_cpu, ACTIVITY] *= cpu_scale
    after_ns = graph.span_ns(graph.node_times(lag_ns.astype(np.int64)))
    return max(after_ns, 0) / replay.baseline_window_ns * replay.baseline_step_ns


def judge_step(step: ExpectedStep, known_share: float) -> Verdict:
    """Whether the step as recorded is what comparable kernels make of it.

    Args:
        step: The expected step on the recorded device.
        known_share: The share (0 to 1) of the GPU's time whose work is known.
    """
    if known_share < _MIN_KNOWN_SHARE:
        return "unknown"
    if step.now_ns > max(step.high_ns, _MIN_FACTOR * step.expected_ns):
        return "slower"
    return "faster" if step.now_ns < min(step.low_ns, step.expected_ns / _MIN_FACTOR) else "as usual"


def _parts(
    split: Mapping[str, int], scaling: Int8Array, weights_ns: FloatArray, ratios: FloatArray, cpu_scale: float
) -> Sequence[ScalingPart]:
    found = []
    for number, name in enumerate(SCALES_WITH):
        rows = (scaling == number) & (weights_ns > 0)
        mean = np.full(3, cpu_scale if number == CPU else 1.0)
        if rows.any():
            mean = np.average(ratios[rows], axis=0, weights=weights_ns[rows])
        found.append(ScalingPart(name, split[name], *mean.tolist()))
    return found


def _bound_by_account(step_ns: int, parts: Sequence[ScalingPart]) -> list[float]:
    """The parts as long as their work; at best what takes longer fills time in which the GPU waits."""
    low, expected, high = (
        sum(part.now_ns * getattr(part, f"{name}_ratio") for part in parts) for name in ("low", "expected", "high")
    )
    if low > step_ns:
        waiting_ns = sum(part.now_ns for part in parts if part.scales_with == SCALES_WITH[CPU])
        low = max(low - waiting_ns, step_ns)
    return [low, max(low, expected), max(low, expected, high)]
