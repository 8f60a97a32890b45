"""Changes of a recorded trace of which it is known what they do to a report, made on the plain JSON."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Event = Mapping[str, Any]

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_LINKS = ("correlation", "External id", "Python id", "Python parent id")
_OFFSET = 1_000_003


def load_events(path: Path) -> dict[str, Any]:
    """The whole content of a trace; a list of events as the object that it stands for."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content = json.loads(data)
    return content if isinstance(content, dict) else {"traceEvents": content}


def change_events(content: Mapping[str, Any], change: Callable[[Event], Event]) -> dict[str, Any]:
    """The trace with each event changed."""
    return {**content, "traceEvents": [change(event) for event in content["traceEvents"]]}


def shuffle(content: Mapping[str, Any]) -> dict[str, Any]:
    """Its events in another order, but for those of one thread that begin at once: the first is around the others."""
    groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in content["traceEvents"]:
        groups.setdefault((event.get("pid"), event.get("tid"), event.get("ts")), []).append(event)
    shuffled = list(groups.values())
    random.Random(7).shuffle(shuffled)
    return {**content, "traceEvents": [event for group in shuffled for event in group]}


def rebase(content: Mapping[str, Any]) -> dict[str, Any]:
    """All of it 1,000 s later."""
    return change_events(content, lambda event: {**event, "ts": event["ts"] + 10**9} if "ts" in event else event)


def scale(content: Mapping[str, Any]) -> dict[str, Any]:
    """All of it twice as slow."""
    return change_events(content, lambda event: {**event, **{k: 2 * event[k] for k in ("ts", "dur") if k in event}})


def rename(content: Mapping[str, Any]) -> dict[str, Any]:
    """Other numbers for all that links events."""

    def change(event: Event) -> Event:
        numbers = event.get("args") or {}
        links = {key: numbers[key] + _OFFSET for key in _LINKS if type(numbers.get(key)) is int and numbers[key] > 0}
        changed = {**event, "args": {**numbers, **links}} if links else event
        if event.get("ph") in ("s", "t", "f") and type(event.get("id")) is int:
            changed = {**changed, "id": event["id"] + _OFFSET}
        return changed

    return change_events(content, change)


def double_kernels(content: Mapping[str, Any]) -> dict[str, Any]:
    """Each kernel a second time, at the same time on another stream."""
    more = [
        {**event, "tid": event["tid"] + 5000, "args": {**event["args"], "stream": event["tid"] + 5000}}
        for event in content["traceEvents"]
        if event.get("cat") == "kernel" and type(event.get("tid")) is int
    ]
    return {**content, "traceEvents": [*content["traceEvents"], *more]}


def profiler_steps(content: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Start and end of each ProfilerStep, in us."""
    marks = (
        event
        for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and str(event.get("name")).startswith("ProfilerStep#")
    )
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in marks)


def pause(content: Mapping[str, Any], at_us: float, length_us: float) -> dict[str, Any]:
    """A pause of the CPU: what begins or is launched at `at_us` or later comes later, what runs then ends later."""
    events: Sequence[Event] = content["traceEvents"]
    launch_us = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }

    def change(event: Event) -> Event:
        if "ts" not in event:
            return event
        is_gpu = event.get("cat") in _GPU
        begin = launch_us.get(event.get("args", {}).get("correlation"), event["ts"]) if is_gpu else event["ts"]
        if begin >= at_us:
            return {**event, "ts": event["ts"] + length_us}
        if not is_gpu and event["ts"] + event.get("dur", 0) > at_us:
            return {**event, "dur": event["dur"] + length_us}
        return event

    return change_events(content, change)
