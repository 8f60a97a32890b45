"""The NVML samples of a capture as counters over the trace's own time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

# The name of a counter, and its series: the label, and the field of a sample.
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
# Reasons that NVML gives for low clocks and that are no throttling: nothing to do, or clocks that somebody has set.
_NOT_THROTTLING = frozenset({"idle", "application_clocks", "sync_boost", "display_clocks"})


def nvml_counter_points(
    text: bytes, base_ns: int, first_ns: int, last_ns: int
) -> Iterator[tuple[str, int, dict[str, float]]]:
    """Name, time and values of every counter, in the order of time.

    Args:
        text: The samples, one JSON object a line, as the capture's nvml.jsonl has them.
        base_ns: What to add to the trace's times to get nanoseconds since the epoch.
        first_ns: The beginning of the annotated time, in the trace's time.
        last_ns: Its end. One sample before and one after it are included, so that the counters reach the edges.
    """
    samples = sorted(_parse_samples(text), key=lambda sample: sample["t_ns"])
    several_devices = len({sample.get("device") for sample in samples}) > 1
    times = [sample["t_ns"] - base_ns for sample in samples]
    before = max((time for time in times if time <= first_ns), default=first_ns)
    after = min((time for time in times if time >= last_ns), default=last_ns)
    for time, sample in zip(times, samples, strict=True):
        if before <= time <= after:
            suffix = f" (GPU {sample.get('device')})" if several_devices else ""
            yield from ((name + suffix, time, values) for name, values in _counter_values(sample))


def _counter_values(sample: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """The name of each counter that a sample has values for, and the values by label."""
    for name, series in _COUNTERS:
        values = {label: sample[field] * _SCALE.get(field, 1) for label, field in series if _is_number(sample, field)}
        if values:
            yield name, values
    reasons = sample.get("throttle")
    if isinstance(reasons, list):
        yield "GPU throttled", {"throttled": float(bool(set(map(str, reasons)) - _NOT_THROTTLING))}


def _is_number(sample: Mapping[str, Any], field: str) -> bool:
    return isinstance(sample.get(field), (int, float))


def _parse_samples(text: bytes) -> Iterator[dict[str, Any]]:
    """The samples of a file; a line that is no sample is skipped, as the last line of a killed program."""
    for line in text.splitlines():
        try:
            sample = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(sample, dict) and isinstance(sample.get("t_ns"), int):
            yield sample
