"""A report as tracks of a Chrome trace: the account, the steps, each finding's time, and how busy the GPU was.

They live in a process of their own. Within a track the events neither overlap nor nest, so every viewer can draw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from perfdoctor.analysis.timeline.account import BUSY_DETAILS, Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report, TraceSummary
from perfdoctor.reporters.nvml_counters import counter_points
from perfdoctor.reporters.report_text import CPU_WORDS, DETAIL_WORDS, has_gpu, per_step
from perfdoctor.reporters.wording import clean, duration, place, saving, share
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.intervals import Intervals, overlap, total, union_of

# Larger than any process id of Linux (2**22) and than rank * 1e8 + pid in merged traces of 20 ranks; viewers want it
# below 2**31.
PID = 2_147_483_000
_STEPS, _ACCOUNT, _FIRST_FINDING = 1, 2, 10
# A viewer stays fluent with some hundred thousand events a track.
MOST_EVENTS = 200_000
_COUNTER_POINTS = 500
_SEVERAL = -1

# Names of the colours that the viewers reserve; Perfetto ignores them and colours by name.
_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "thread_state_running",
        "bandwidth": "thread_state_runnable",
        "memcpy": "rail_load",
        "communication": "detailed_memory_dump",
        "kernel_latency": "olive",
        "idle_dataloader": "terrible",
        "idle_sync": "bad",
        "idle_launch": "thread_state_iowait",
        "idle_communication": "rail_animation",
        "idle_allocator": "yellow",
        "idle_unexplained": "grey",
    }
)


@dataclass(frozen=True, slots=True)
class Look:
    """What all events of one kind on a track share: name, colour, arguments."""

    name: str
    colour: str | None = None
    args: Mapping[str, Any] | None = None


def track_events(report: Report, index: int) -> Iterator[bytes]:
    """The events for one trace of the report, each a JSON object in bytes; times are those of the trace's file.

    Args:
        report: a report with the intervals of its account and claims, as analysis makes it.
        index: which of `report.traces`.
    """
    account = report.account[index] if index < len(report.account) else None
    yield _metadata("process_name", None, {"name": "perfdoctor"})
    yield _metadata("process_sort_index", None, {"sort_index": -1})
    if account is not None:
        yield from _steps(account)
        yield from _account(account, DETAIL_WORDS if has_gpu(report) else CPU_WORDS)
        if has_gpu(report):
            yield from _busy(account)
        yield from _samples(report.traces[index], account)
    rank = report.traces[index].rank
    for number, finding in enumerate(report.findings, 1):
        if len(finding.claim.intervals) and _claims(finding, rank, alone=len(report.traces) == 1):
            yield from _finding(number, finding, per_step(report))


def _claims(finding: Finding, rank: int | None, *, alone: bool) -> bool:
    """Whether the claimed time is time of this rank."""
    return alone or rank in (finding.claim.rank, finding.rank)


def _steps(account: Account) -> Iterator[bytes]:
    if len(account.steps):
        yield from _thread(_STEPS, "steps")
        looks = [Look(f"step {number}") for number in range(1, len(account.steps) + 1)]
        yield from _events(_STEPS, account.steps, np.arange(len(looks)), looks)


def _account(account: Account, words: Mapping[str, str]) -> Iterator[bytes]:
    names = [name for name in account.parts if len(account.parts[name])]
    if not names:
        return
    yield from _thread(_ACCOUNT, "account")
    rows = np.concatenate([account.parts[name] for name in names])
    kind = np.repeat(np.arange(len(names)), [len(account.parts[name]) for name in names])
    order = np.argsort(rows[:, 0], kind="stable")
    looks = [Look(name, _COLOURS.get(name), {"meaning": words.get(name, name)}) for name in names]
    yield from _events(_ACCOUNT, rows[order], kind[order], looks)


def _busy(account: Account) -> Iterator[bytes]:
    """The share of each of _COUNTER_POINTS equal slices of the window in which the GPU was busy."""
    busy = union_of(account.parts[name] for name in BUSY_DETAILS if name in account.parts)
    window = union_of(account.parts.values())
    if not len(window):
        return
    edges = np.linspace(window[0, 0], window[-1, 1], _COUNTER_POINTS + 1).astype(np.int64)
    length = np.maximum(np.diff(edges), 1)
    covered = overlap(edges[:-1], edges[1:], busy) / length
    for at, value in zip(edges[:-1].tolist(), covered.tolist(), strict=True):
        yield b'{"ph":"C","cat":"perfdoctor","name":"GPU busy","pid":%d,"ts":%s,"args":{"%%":%.1f}}' % (
            PID,
            _us(at),
            100 * value,
        )
    yield b'{"ph":"C","cat":"perfdoctor","name":"GPU busy","pid":%d,"ts":%s,"args":{"%%":0}}' % (
        PID,
        _us(int(edges[-1])),
    )


def _samples(trace: TraceSummary, account: Account) -> Iterator[bytes]:
    """Clocks, power and the like as the capture has sampled them."""
    window = union_of(account.parts.values())
    if not len(window):
        return
    for name, at, values in counter_points(trace.path, trace.base_ns, int(window[0, 0]), int(window[-1, 1])):
        head = _json({"ph": "C", "cat": "perfdoctor", "name": name, "pid": PID, "args": values})
        yield head[:-1] + b',"ts":' + _us(at) + b"}"


def _finding(number: int, finding: Finding, per: str) -> Iterator[bytes]:
    tid = _FIRST_FINDING + number
    name = clean(f"{finding.rule} {finding.name}")
    args = {
        "title": clean(finding.title),
        "severity": finding.severity,
        "cost": f"{duration(finding.cost_ns)}{per} ({share(finding.share_of_step)})",
        "saving": saving(finding.saving, per),
        "place": place(finding.location) if finding.location else None,
        "advice": clean(finding.advice),
        "claimed": duration(total(finding.claim.intervals)),
    }
    yield from _thread(tid, f"{number}. {name}")
    rows = finding.claim.intervals
    yield from _events(tid, rows, np.zeros(len(rows), np.int64), [Look(name, None, args)])


def _thread(tid: int, name: str) -> Iterator[bytes]:
    yield _metadata("thread_name", tid, {"name": name})
    yield _metadata("thread_sort_index", tid, {"sort_index": tid})


def _metadata(name: str, tid: int | None, args: Mapping[str, Any]) -> bytes:
    return _json({"ph": "M", "name": name, "pid": PID, "tid": tid or 0, "ts": 0, "args": args})


def _events(tid: int, rows: Intervals, kind: npt.NDArray[np.int64], looks: list[Look]) -> Iterator[bytes]:
    """Complete events for intervals that are sorted and disjoint; `kind` says which look each has."""
    start, end, kind, count = thinned(rows[:, 0], rows[:, 1], kind)
    tails = [_tail(look) for look in looks]
    front = b'{"ph":"X","cat":"perfdoctor","pid":%d,"tid":%d,"ts":' % (PID, tid)
    for at, until, which, parts in zip(start.tolist(), end.tolist(), kind.tolist(), count.tolist(), strict=True):
        tail = tails[which] if which != _SEVERAL else _tail(Look("several short parts", "white", {"parts": parts}))
        yield front + _us(at) + b',"dur":' + _us(until - at) + tail


def _tail(look: Look) -> bytes:
    fields: dict[str, Any] = {"name": look.name}
    if look.colour:
        fields["cname"] = look.colour
    if look.args:
        fields["args"] = look.args
    return b"," + _json(fields)[1:]


def thinned(
    start: Int64Array, end: Int64Array, kind: npt.NDArray[np.int64], most: int = MOST_EVENTS
) -> tuple[Int64Array, Int64Array, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """At most about `most` intervals: the longest half of that number stay, runs of shorter ones become one each.

    Returns start, end, kind and the number of parts of each; the kind of a run of several is -1. What comes in sorted
    and disjoint goes out so.
    """
    if len(start) <= most:
        return start, end, kind, np.ones(len(start), np.int64)
    keep = np.zeros(len(start), bool)
    keep[np.argpartition(end - start, -(most // 2))[-(most // 2) :]] = True
    first = keep.copy()
    first[0] = True
    first[1:] |= keep[:-1]
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(start)) - 1
    count = tails - heads + 1
    return start[heads], end[tails], np.where(count == 1, kind[heads], _SEVERAL), count


def _us(ns: int) -> bytes:
    """Nanoseconds as microseconds in decimal, exactly: a float would lose the fraction of times since the epoch."""
    whole, fraction = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, fraction)


def _json(value: Mapping[str, Any]) -> bytes:
    return orjson.dumps(value)
