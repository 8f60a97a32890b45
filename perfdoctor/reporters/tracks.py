"""A report as tracks of a Chrome trace: the account, the steps, each finding's time, and how busy the GPU was.

The tracks are in a process of their own. Within a track the events neither overlap nor nest, so every viewer can draw
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import orjson

from perfdoctor.analysis.timeline.account import BUSY_DETAILS, Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report, TraceSummary
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.format_values import format_duration, format_location, format_saving, format_share
from perfdoctor.reporters.nvml_counters import nvml_counter_points
from perfdoctor.reporters.report_facts import has_gpu, per_step_suffix
from perfdoctor.reporters.time_split import detail_labels
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.intervals import Intervals, overlap, total, union_of

# Larger than any process id of Linux (2**22), and than rank * 1e8 + pid in merged traces of 20 ranks. Viewers want it
# below 2**31.
PID = 2_147_483_000
_STEP_TID, _ACCOUNT_TID, _FIRST_FINDING_TID = 1, 2, 10
# A viewer stays responsive up to some hundred thousand events in a track.
MAX_EVENTS = 200_000
_BUSY_POINTS = 500
_COALESCED = -1

# Names of the colours that chrome://tracing reserves; Perfetto ignores them and colours by name.
_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "thread_state_running",
        "bandwidth": "thread_state_runnable",
        "memcpy": "rail_load",
        "communication": "detailed_memory_dump",
        "latency": "olive",
        "idle_dataloader": "terrible",
        "idle_sync": "bad",
        "idle_launch": "thread_state_iowait",
        "idle_communication": "rail_animation",
        "idle_allocator": "yellow",
        "idle_unexplained": "grey",
    }
)


@dataclass(frozen=True, slots=True)
class EventKind:
    """What all events of one kind on a track share."""

    name: str
    colour: str | None = None
    args: Mapping[str, Any] | None = None

    def json_tail(self) -> bytes:
        """The end of the JSON object of an event, after its times."""
        fields: dict[str, Any] = {"name": self.name}
        if self.colour:
            fields["cname"] = self.colour
        if self.args:
            fields["args"] = self.args
        return b"," + orjson.dumps(fields)[1:]


def track_events(report: Report, index: int, nvml_samples: bytes = b"") -> Iterator[bytes]:
    """The events for one trace of the report, each a JSON object in bytes; times are those of the trace's file.

    Args:
        report: A report with the intervals of its account and claims, as analysis makes it, and with printable findings
            (see `with_printable_findings`).
        index: Which of `report.traces`.
        nvml_samples: The text of the capture's nvml.jsonl; empty where there is none.
    """
    account = report.account[index] if index < len(report.account) else None
    yield _metadata("process_name", None, {"name": "perfdoctor"})
    yield _metadata("process_sort_index", None, {"sort_index": -1})
    if account is not None:
        yield from _step_track(account)
        yield from _account_track(account, detail_labels(report))
        if has_gpu(report):
            yield from _busy_counter(account)
        yield from _nvml_counters(nvml_samples, report.traces[index], account)
    rank = report.traces[index].rank
    for number, finding in enumerate(report.findings, 1):
        if len(finding.claim.intervals) and (len(report.traces) == 1 or _claims_time_of(finding, rank)):
            yield from _finding_track(number, finding, per_step_suffix(report))


def _claims_time_of(finding: Finding, rank: int | None) -> bool:
    return rank in (finding.claim.rank, finding.rank)


def _step_track(account: Account) -> Iterator[bytes]:
    if len(account.steps):
        yield from _name_thread(_STEP_TID, "steps")
        kinds = [EventKind(f"step {number}") for number in range(1, len(account.steps) + 1)]
        yield from _complete_events(_STEP_TID, account.steps, np.arange(len(kinds)), kinds)


def _account_track(account: Account, labels: Mapping[str, str]) -> Iterator[bytes]:
    names = [name for name in account.parts if len(account.parts[name])]
    if not names:
        return
    yield from _name_thread(_ACCOUNT_TID, "account")
    rows = np.concatenate([account.parts[name] for name in names])
    kind = np.repeat(np.arange(len(names)), [len(account.parts[name]) for name in names])
    order = np.argsort(rows[:, 0], kind="stable")
    kinds = [EventKind(name, _COLOURS.get(name), {"meaning": labels.get(name, name)}) for name in names]
    yield from _complete_events(_ACCOUNT_TID, rows[order], kind[order], kinds)


def _busy_counter(account: Account) -> Iterator[bytes]:
    """In how much of each of _BUSY_POINTS equal slices of the window the GPU was busy, in percent."""
    busy = union_of(account.parts[name] for name in BUSY_DETAILS if name in account.parts)
    window = union_of(account.parts.values())
    if not len(window):
        return
    edges = np.linspace(window[0, 0], window[-1, 1], _BUSY_POINTS + 1).astype(np.int64)
    length = np.maximum(np.diff(edges), 1)
    share = overlap(edges[:-1], edges[1:], busy) / length
    counter = b'{"ph":"C","cat":"perfdoctor","name":"GPU busy","pid":%d,"ts":%s,"args":{"%%":%s}}'
    for time, value in zip(edges[:-1].tolist(), share.tolist(), strict=True):
        yield counter % (PID, _microseconds(time), b"%.1f" % (100 * value))
    yield counter % (PID, _microseconds(int(edges[-1])), b"0")


def _nvml_counters(samples: bytes, trace: TraceSummary, account: Account) -> Iterator[bytes]:
    """Clocks, power and the like, as the capture sampled them."""
    window = union_of(account.parts.values())
    if not len(window):
        return
    for name, time, values in nvml_counter_points(samples, trace.base_ns, int(window[0, 0]), int(window[-1, 1])):
        head = orjson.dumps({"ph": "C", "cat": "perfdoctor", "name": name, "pid": PID, "args": values})
        yield head[:-1] + b',"ts":' + _microseconds(time) + b"}"


def _finding_track(number: int, finding: Finding, per_step: str) -> Iterator[bytes]:
    tid = _FIRST_FINDING_TID + number
    name = clean_line(f"{finding.rule} {finding.name}")
    args = {
        "title": clean_line(finding.title),
        "severity": finding.severity,
        "cost": f"{format_duration(finding.cost_ns)}{per_step} ({format_share(finding.share_of_step)})",
        "saving": format_saving(finding.saving),
        "place": format_location(finding.location) if finding.location else None,
        "advice": clean_line(finding.advice),
        "claimed": format_duration(total(finding.claim.intervals)),
    }
    yield from _name_thread(tid, f"{number}. {name}")
    rows = finding.claim.intervals
    yield from _complete_events(tid, rows, np.zeros(len(rows), np.int64), [EventKind(name, None, args)])


def _name_thread(tid: int, name: str) -> Iterator[bytes]:
    yield _metadata("thread_name", tid, {"name": name})
    yield _metadata("thread_sort_index", tid, {"sort_index": tid})


def _metadata(name: str, tid: int | None, args: Mapping[str, Any]) -> bytes:
    return orjson.dumps({"ph": "M", "name": name, "pid": PID, "tid": tid or 0, "ts": 0, "args": args})


def _complete_events(tid: int, rows: Intervals, kind: Int64Array, kinds: Sequence[EventKind]) -> Iterator[bytes]:
    """Complete events for intervals that are sorted and disjoint; `kind` is the index in `kinds` of each."""
    start, end, kind, count = coalesce_short_intervals(rows[:, 0], rows[:, 1], kind)
    tails = [each.json_tail() for each in kinds]
    head = b'{"ph":"X","cat":"perfdoctor","pid":%d,"tid":%d,"ts":' % (PID, tid)
    for at, until, index, parts in zip(start.tolist(), end.tolist(), kind.tolist(), count.tolist(), strict=True):
        if index == _COALESCED:
            tail = EventKind("several short parts", "white", {"parts": parts}).json_tail()
        else:
            tail = tails[index]
        yield head + _microseconds(at) + b',"dur":' + _microseconds(until - at) + tail


def coalesce_short_intervals(
    start: Int64Array, end: Int64Array, kind: Int64Array, max_events: int = MAX_EVENTS
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """About `max_events` intervals at most: the longest stay, half that number; each run of shorter ones becomes one.

    With `max_events` 4, the two longest of these five intervals stay::

        start  0  10  20  30  40        start  0  10  30  40
        end    9  12  23  39  41   ->   end    9  23  39  41
        kind   0   1   2   0   1        kind   0  -1   0   1

    Returns:
        Start, end, kind, and the number of intervals that each stands for. The kind of several is -1. Sorted and
        disjoint intervals come out sorted and disjoint.
    """
    if len(start) <= max_events:
        return start, end, kind, np.ones(len(start), np.int64)
    keep = np.zeros(len(start), bool)
    keep[np.argpartition(end - start, -(max_events // 2))[-(max_events // 2) :]] = True
    first = keep.copy()
    first[0] = True
    first[1:] |= keep[:-1]
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(start)) - 1
    count = tails - heads + 1
    return start[heads], end[tails], np.where(count == 1, kind[heads], _COALESCED), count


def _microseconds(ns: int) -> bytes:
    """Nanoseconds as microseconds in decimal, exactly: a float would lose the fraction of times since the epoch."""
    whole, fraction = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, fraction)
