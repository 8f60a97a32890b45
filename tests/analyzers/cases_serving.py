"""Cases of the rules about serving engines, PD801 and PD803, and of PD402 on one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine_programs import FRAMES, RANGES, SGLANG, TENSORRT_LLM, Pass, serve

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

SGLANG_DECODE = "step[DECODE bs=4]"
GENERATION = "[Executor] _forward_step 6: 0 ctx reqs, 0 ctx tokens, {size} gen reqs"
TENSORRT_LLM_DECODE = GENERATION.format(size=4)


def decode(passes: int = 5, label: str = "", **host_us: float) -> list[Pass]:
    """Passes of 10 ms that decode; of five, four have a gap behind them: of 1000 us a gap, 800 us a pass."""
    return [Pass(label=label, host_us=host_us)] * passes


def batches(
    sizes: Sequence[int],
    captured: int = 8,
    label: str = "",
    gpu_us: float = 2000,
    frames: Mapping[str, str] = FRAMES,
    stacks: bool = True,
    overlapped: bool = False,
) -> TraceBuilder:
    """An engine that captured graphs up to a batch: above it a kernel of 20 us is launched every 60 us."""
    return serve(
        [
            Pass(
                decoded=size,
                gpu_us=gpu_us,
                graphed=size <= captured,
                label=label.format(size=size),
                host_us={"preparing": 50, "launch": 50},
            )
            for size in sizes
        ],
        overlapped,
        stacks=stacks,
        frames=frames,
    )


def padded(
    sizes: Sequence[int], label: str = "", large_us: float = 10_000, rows: int = 32, frames: Mapping[str, str] = FRAMES
) -> TraceBuilder:
    """An engine whose graphs are captured for 4 and for 32 requests; that for 4 takes 6 ms."""
    return serve(
        [
            Pass(
                decoded=size,
                gpu_us=6000 if size <= 4 else large_us,
                rows=min(rows, 4) if size <= 4 else rows,
                label=label.format(size=size),
                host_us={"scheduling": 300},
            )
            for size in [*sizes] * 6
        ],
        overlapped=True,
        stacks="preparing" in frames,
        frames=frames,
    )


MANY_SIZES = (4, 8, 16, 4, 8, 16, 4, 8, 32)
