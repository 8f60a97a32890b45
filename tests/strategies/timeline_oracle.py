"""An independent computation of the timeline: a sweep over the edges of GPU events in the JSON, in whole nanoseconds.

It shares no code with the package: neither the reader nor the interval arithmetic nor the classes of kernels.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable
from decimal import ROUND_FLOOR, Decimal
from typing import Any

COPIES = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")


def compute_timeline(text: str | bytes) -> dict[str, int] | None:
    """The figures of the report's `timeline` in ns and the number of GPU items; None when the file has none."""
    # Fractions stay text: in float64, microseconds since the epoch are only exact to a quarter of one.
    # The garbage collector would take half of the time to look for cycles among millions of events.
    gc.disable()
    try:
        whole = json.loads(text, parse_float=str)
    finally:
        gc.enable()
    events = whole if isinstance(whole, list) else whole["traceEvents"]
    spans = [span for span in map(_span, events) if span is not None]
    if not spans:
        return None
    edges = sorted(edge for start, end, kind in spans for edge in ((start, kind, 1), (end, kind, -1)) if start < end)
    figures = _sweep(edges)
    window = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    busy = figures["computation_ns"] + figures["exposed_communication_ns"] + figures["exposed_memcpy_ns"]
    return {"window_ns": window, "busy_ns": busy, "idle_ns": window - busy, **figures, "items": len(spans)}


def _span(event: Any) -> tuple[int, int, str] | None:
    if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("cat"), str):
        return None
    category = event["cat"].lower()
    if category not in ("kernel", *COPIES):
        return None
    name = str(event.get("name")).lower()
    kind = "memcpy" if category in COPIES else "communication" if "nccl" in name or "rccl" in name else "computation"
    start = _ns(event["ts"])
    return start, start + max(_ns(event["dur"]), 0), kind


def _ns(microseconds: int | str) -> int:
    return int((Decimal(microseconds) * 1000 + Decimal("0.5")).to_integral_value(ROUND_FLOOR))


def _sweep(edges: Iterable[tuple[int, str, int]]) -> dict[str, int]:
    """Sum the time between edges by what runs then: computation, else communication, else copies."""
    running = {"computation": 0, "communication": 0, "memcpy": 0}
    spent = dict.fromkeys(
        ("computation_ns", "exposed_communication_ns", "exposed_memcpy_ns", "communication_ns", "memcpy_ns"), 0
    )
    last = 0
    for at, kind, change in edges:
        passed, last = at - last, at
        if running["communication"]:
            spent["communication_ns"] += passed
        if running["memcpy"]:
            spent["memcpy_ns"] += passed
        if running["computation"]:
            spent["computation_ns"] += passed
        elif running["communication"]:
            spent["exposed_communication_ns"] += passed
        elif running["memcpy"]:
            spent["exposed_memcpy_ns"] += passed
        running[kind] += change
    return spent
