"""What NVML said beside a capture, as counters over the trace's own time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

SAMPLES = "nvml.jsonl"
# Name of the counter, and the series in it with the field of a sample that each shows.
_COUNTERS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("GPU clock, MHz", (("SM", "sm_mhz"), ("memory", "memory_mhz"))),
    ("GPU power, W", (("power", "power_w"),)),
    ("GPU temperature, C", (("temperature", "temperature_c"),)),
    ("GPU utilisation by NVML, %", (("kernels", "gpu_percent"), ("memory", "memory_percent"))),
    ("GPU memory, GB", (("used", "memory_used_bytes"),)),
    ("PCIe link", (("generation", "pcie_generation"), ("width", "pcie_width"))),
    ("GPU processes", (("processes", "processes"),)),
)
_SCALE: Mapping[str, float] = {"memory_used_bytes": 1e-9}
# Reasons that are no throttling: nothing to do, or clocks as somebody has set them.
_HARMLESS = frozenset({"idle", "application_clocks", "sync_boost", "display_clocks"})


def counter_points(
    trace: str, base_ns: int, first_ns: int, last_ns: int
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Name, time and values of every counter, in the order of time; nothing where no samples were captured.

    Args:
        trace: path of the trace; the samples stand beside it.
        base_ns: what to add to the trace's times to get nanoseconds since the epoch.
        first_ns: beginning of what is shown, in the trace's time.
        last_ns: its end. One sample before and behind is kept, so that the counters reach the edges.
    """
    samples = sorted(_read(Path(trace).with_name(SAMPLES)), key=lambda sample: sample["t_ns"])
    several = len({sample.get("device") for sample in samples}) > 1
    times = [sample["t_ns"] - base_ns for sample in samples]
    before = max((at for at in times if at <= first_ns), default=first_ns)
    behind = min((at for at in times if at >= last_ns), default=last_ns)
    for at, sample in zip(times, samples, strict=True):
        if before <= at <= behind:
            suffix = f" (GPU {sample.get('device')})" if several else ""
            yield from ((name + suffix, at, values) for name, values in _values(sample))


def _values(sample: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for name, series in _COUNTERS:
        known = {label: sample[field] * _SCALE.get(field, 1) for label, field in series if _is_number(sample, field)}
        if known:
            yield name, known
    reasons = sample.get("throttle")
    if isinstance(reasons, list):
        yield "GPU throttled", {"throttled": float(bool(set(map(str, reasons)) - _HARMLESS))}


def _is_number(sample: Mapping[str, Any], field: str) -> bool:
    return isinstance(sample.get(field), (int, float))


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The samples of a file; the last line of a killed program may be cut."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            sample = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(sample, dict) and isinstance(sample.get("t_ns"), int):
            yield sample
