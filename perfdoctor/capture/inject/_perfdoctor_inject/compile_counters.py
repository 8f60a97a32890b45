"""What dynamo has compiled so far, from dynamo's counters; dynamo is never imported for them."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from .probes import Probe
from .user_code import Location, is_foreign_file, name_file

# The phases of dynamo that contain all others: the forward pass, and the backward pass, compiled when it first runs.
OUTERMOST_PHASES = ("entire_frame_compile", "entire_backward_compile")

# The most common breaks say enough.
MAX_REASONS = 16
MAX_REASON_LENGTH = 120
RESUMED = re.compile(r"^torch_dynamo_resume_in_(.*)_at_(\d+)$")


class CompileCounters(NamedTuple):
    """What dynamo has compiled since the program began: frames, of these again, and the time; None for unknown."""

    frames: int | None
    recompiles: int | None
    ns: int | None


def read_compile_counters() -> CompileCounters | None:
    """Dynamo's counters now, in microseconds; None when the program never loaded dynamo."""
    convert, utils = (sys.modules.get(f"torch._dynamo.{name}") for name in ("convert_frame", "utils"))
    if convert is None:
        return None
    by_frame = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    ns_by_phase = getattr(utils, "cumulative_time_spent_ns", None)
    return CompileCounters(
        frames=None if by_frame is None else sum(by_frame.values()),
        recompiles=None if by_frame is None else sum(max(count - 1, 0) for count in by_frame.values()),
        ns=None if ns_by_phase is None else int(sum(ns_by_phase.get(phase, 0) for phase in OUTERMOST_PHASES)),
    )


def count_break_reasons(counts: Mapping[str, int]) -> dict[str, int]:
    """How often dynamo gave each reason for a break: the first line of it, which names no value of the program."""
    found: Counter[str] = Counter()
    for reason, count in counts.items():
        found[(str(reason).split("\n") or [""])[0].strip()[:MAX_REASON_LENGTH]] += count
    return dict(found.most_common(MAX_REASONS))


def list_break_lines() -> list[Location]:
    """The lines of the user's code after which dynamo goes on with a new graph; none where this torch does not tell.

    For each break dynamo makes a function that resumes there, torch_dynamo_resume_in_forward_at_23, and keeps them by
    the code that they resume.
    """
    module = sys.modules.get("torch._dynamo.resume_execution")
    cache: Any = getattr(getattr(module, "ContinueExecutionCache", None), "cache", None)
    found: dict[tuple[str, int], Location] = {}
    with contextlib.suppress(Exception):  # its form is nobody's promise
        for key, reference in dict(getattr(cache, "refs", {})).items():
            code = reference()
            for resumed in cache.values[key].values() if code is not None else ():
                line = RESUMED.search(resumed.co_name)
                if line and not is_foreign_file(code.co_filename):
                    # What breaks once more behind a break does so in the function that resumed there.
                    resuming = RESUMED.search(code.co_name)
                    function = resuming[1] if resuming else code.co_name
                    location = {"file": name_file(code.co_filename), "line": int(line[2]), "function": function}
                    found.setdefault((code.co_filename, int(line[2])), location)
    return list(found.values())[:MAX_REASONS]


class CompilesByWindow(Probe):
    """What was compiled in the steps of each window."""

    def __init__(self) -> None:
        self.windows: dict[str, dict[str, int]] = defaultdict(lambda: {"frames": 0, "ns": 0})
        self._frames = self._ns = 0

    def end_step(self, window: str) -> bool:
        """Add to a window what was compiled in the step that ends; whether anything was."""
        # torch's optimizers load dynamo, so that most programs have it and never compile: for them, one look is enough.
        if not getattr(sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", True):
            return False
        now = read_compile_counters()
        if now is None:
            return False
        frames, ns = now.frames or 0, now.ns or 0
        has_compiled = frames > self._frames or ns > self._ns
        if has_compiled:
            self.windows[window]["frames"] += frames - self._frames
            self.windows[window]["ns"] += ns - self._ns
        self._frames, self._ns = frames, ns
        return has_compiled

    def facts(self) -> dict[str, Any]:
        """Dynamo's counters and what the steps of each window added; None when the program never loaded dynamo."""
        now, utils = read_compile_counters(), sys.modules.get("torch._dynamo.utils")
        if now is None or utils is None:
            return {"compile": None}
        compiled = {
            "graphs": int(utils.counters["stats"].get("unique_graphs", 0)),
            "graph_breaks": sum(utils.counters["graph_break"].values()),
            "break_reasons": count_break_reasons(utils.counters["graph_break"]),
            "break_lines": list_break_lines(),
            "frames": now.frames,
            "recompiles": now.recompiles,
            "ns": now.ns,
            "windows": dict(self.windows),
        }
        return {"compile": compiled}
