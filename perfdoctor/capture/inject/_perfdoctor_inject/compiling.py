"""What dynamo has compiled so far, read off its own counters; it is never imported on the program's behalf."""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

# Phases of dynamo that hold all others: forward, and the backward pass, which is compiled when it first runs.
WHOLE_COMPILES = ("entire_frame_compile", "entire_backward_compile")


@dataclass(frozen=True)
class Compiled:
    """Frames compiled, how many of them again, and the time in ns; None where this torch does not tell."""

    frames: int | None = None
    again: int | None = None
    ns: int | None = None


def compiled_so_far() -> Compiled | None:
    """Since the program began, or None when it never loaded dynamo. Takes microseconds: a few counters."""
    convert, utils = (sys.modules.get(f"torch._dynamo.{name}") for name in ("convert_frame", "utils"))
    if convert is None:
        return None
    by_frame = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    spent = getattr(utils, "cumulative_time_spent_ns", None)
    return Compiled(
        frames=None if by_frame is None else sum(by_frame.values()),
        again=None if by_frame is None else sum(max(count - 1, 0) for count in by_frame.values()),
        ns=None if spent is None else int(sum(spent.get(phase, 0) for phase in WHOLE_COMPILES)),
    )


class CompileLog:
    """What was compiled in the steps of each window."""

    def __init__(self) -> None:
        self.windows: dict[str, dict[str, int]] = defaultdict(lambda: {"frames": 0, "ns": 0})
        self._frames = self._ns = 0

    def step(self, window: str) -> None:
        """One step has ended: what is new belongs to its window."""
        # Torch's optimizers load dynamo, so that most programs have it and never compile: those pay for one look.
        if not getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", True):
            return
        now = compiled_so_far()
        if now is None:
            return
        frames, ns = now.frames or 0, now.ns or 0
        if frames > self._frames or ns > self._ns:
            self.windows[window]["frames"] += frames - self._frames
            self.windows[window]["ns"] += ns - self._ns
        self._frames, self._ns = frames, ns


def compilation(log: CompileLog) -> dict[str, Any] | None:
    """Dynamo's counters and what each window's steps added, or None when the program never loaded it."""
    now, utils = compiled_so_far(), sys.modules.get("torch._dynamo.utils")
    if now is None or utils is None:
        return None
    return {
        "graphs": int(utils.counters["stats"].get("unique_graphs", 0)),
        "graph_breaks": sum(utils.counters["graph_break"].values()),
        "frames": now.frames,
        "recompiles": now.again,
        "ns": now.ns,
        "windows": dict(log.windows),
    }
