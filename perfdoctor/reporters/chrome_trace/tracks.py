"""A report as tracks of a Chrome trace: the account, the steps, each finding's time, counters, and arrows.

The tracks are in a process of their own. Within a track the events neither overlap nor nest, so every viewer can draw
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from perfdoctor.analysis.timeline.account import BUSY_DETAILS, Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report, TraceSummary
from perfdoctor.reporters.chrome_trace.rank_tracks import RankTracks
from perfdoctor.reporters.chrome_trace.track_writer import EventKind, TrackWriter
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.format_values import format_finding_saving, format_location
from perfdoctor.reporters.report_facts import has_gpu, per_step_suffix
from perfdoctor.reporters.time_split import detail_labels, labels_of_details
from perfdoctor.trace.tables.intervals import overlap, total, union_of
from perfdoctor.units import format_duration, format_share

_STEP_TID, _ACCOUNT_TID, _FIRST_FINDING_TID = 1, 2, 10
_BUSY_POINTS = 500

_COLOURS = labels_of_details("colour")


def rank_events(of_rank: RankTracks, nvml_samples: bytes, writer: TrackWriter) -> Iterator[bytes]:
    """All events of our process for one rank, but for its name; see `track_events`."""
    report = of_rank.report
    yield from track_events(report, 0, nvml_samples, writer)
    for counter in of_rank.counters:
        yield from writer.counter(counter.name, counter.series, counter.time_ns, counter.value)
    for memory in of_rank.memory:
        rows = np.stack(list(memory.series.values()), axis=1).tolist()
        for time_ns, row in zip(memory.time_ns.tolist(), rows, strict=True):
            yield writer.counter_point(memory.name, time_ns, dict(zip(memory.series, row, strict=True)))
    numbers = {id(finding): number for number, finding in enumerate(report.findings, 1)}
    for at, arrow in enumerate(of_rank.arrows):
        tid = _FIRST_FINDING_TID + numbers[id(arrow.finding)]
        points = [(point.time_ns, point.track or tid) for point in arrow.points]
        yield from writer.arrow(clean_line(f"{arrow.finding.rule} {arrow.finding.name}"), at, points)


def track_events(
    report: Report, index: int, nvml_samples: bytes = b"", writer: TrackWriter | None = None
) -> Iterator[bytes]:
    """The events for one trace of the report, each a JSON object in bytes; times are those of the trace's file.

    Args:
        report: A report with the intervals of its account and claims, as analysis makes it.
        index: Which of `report.traces`.
        nvml_samples: The text of the capture's nvml.jsonl; empty where there is none.
        writer: Of the process that the tracks are in; by default one named perfdoctor.
    """
    if writer is None:
        writer = TrackWriter()
        yield from writer.name_process("perfdoctor", -1)
    account = report.account[index] if index < len(report.account) else None
    if account is not None:
        yield from _step_track(writer, account)
        yield from _account_track(writer, account, detail_labels(report))
        if has_gpu(report):
            yield from _busy_counter(writer, account)
        yield from _nvml_counters(writer, nvml_samples, report.traces[index], account)
    rank = report.traces[index].rank
    for number, finding in enumerate(report.findings, 1):
        if len(finding.claim.intervals) and (len(report.traces) == 1 or rank in (finding.claim.rank, finding.rank)):
            yield from _finding_track(writer, number, finding, per_step_suffix(report))


def _step_track(writer: TrackWriter, account: Account) -> Iterator[bytes]:
    if len(account.steps):
        yield from writer.name_thread(_STEP_TID, "steps")
        kinds = [EventKind(f"step {number}") for number in range(1, len(account.steps) + 1)]
        yield from writer.slices(_STEP_TID, account.steps, np.arange(len(kinds)), kinds)


def _account_track(writer: TrackWriter, account: Account, labels: Mapping[str, str]) -> Iterator[bytes]:
    names = [name for name in account.parts if len(account.parts[name])]
    if not names:
        return
    yield from writer.name_thread(_ACCOUNT_TID, "account")
    rows = np.concatenate([account.parts[name] for name in names])
    kind = np.repeat(np.arange(len(names)), [len(account.parts[name]) for name in names])
    order = np.argsort(rows[:, 0], kind="stable")
    kinds = [EventKind(name, _COLOURS.get(name), {"meaning": labels.get(name, name)}) for name in names]
    yield from writer.slices(_ACCOUNT_TID, rows[order], kind[order], kinds)


def _busy_counter(writer: TrackWriter, account: Account) -> Iterator[bytes]:
    """In how much of each of _BUSY_POINTS equal slices of the window the GPU was busy, in percent."""
    busy = union_of(account.parts[name] for name in BUSY_DETAILS if name in account.parts)
    window = union_of(account.parts.values())
    if not len(window):
        return
    edges = np.linspace(window[0, 0], window[-1, 1], _BUSY_POINTS + 1).astype(np.int64)
    length = np.maximum(np.diff(edges), 1)
    share = overlap(edges[:-1], edges[1:], busy) / length
    percent = np.append(np.round(100 * share, 1), 0.0)
    yield from writer.counter("GPU busy", "%", edges, percent)


def _nvml_counters(writer: TrackWriter, samples: bytes, trace: TraceSummary, account: Account) -> Iterator[bytes]:
    """Clocks, power and the like, as the capture sampled them."""
    window = union_of(account.parts.values())
    if not len(window):
        return
    for name, time, values in nvml_counter_points(samples, trace.base_ns, int(window[0, 0]), int(window[-1, 1])):
        yield writer.counter_point(name, time, values)


def _finding_track(writer: TrackWriter, number: int, finding: Finding, per_step: str) -> Iterator[bytes]:
    tid = _FIRST_FINDING_TID + number
    name = clean_line(f"{finding.rule} {finding.name}")
    args = {
        "title": clean_line(finding.title),
        "severity": finding.severity,
        "cost": f"{format_duration(finding.cost_ns)}{per_step} ({format_share(finding.share_of_step)})",
        "saving": format_finding_saving(finding),
        "place": format_location(finding.location) if finding.location else None,
        "advice": clean_line(finding.advice),
        "claimed": format_duration(total(finding.claim.intervals)),
    }
    yield from writer.name_thread(tid, f"{number}. {name}")
    rows = finding.claim.intervals
    yield from writer.slices(tid, rows, np.zeros(len(rows), np.int64), [EventKind(name, None, args)])


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
# Reasons that NVML gives for low clocks and that are not throttling: nothing to do, or clocks that somebody has set.
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
        known = [(label, field) for label, field in series if isinstance(sample.get(field), (int, float))]
        values = {label: sample[field] * _SCALE.get(field, 1) for label, field in known}
        if values:
            yield name, values
    reasons = sample.get("throttle")
    if isinstance(reasons, list):
        yield "GPU throttled", {"throttled": float(bool(set(map(str, reasons)) - _NOT_THROTTLING))}


def _parse_samples(text: bytes) -> Iterator[dict[str, Any]]:
    """The samples of a file; a line that is not a sample is skipped, as the last line of a killed program."""
    for line in text.splitlines():
        try:
            sample = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(sample, dict) and isinstance(sample.get("t_ns"), int):
            yield sample
