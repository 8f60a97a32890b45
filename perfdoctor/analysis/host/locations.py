"""From an instant of a trace to the user's line.

Exact where lines were captured, else the innermost Python frame that is the user's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from os.path import isabs
from typing import TYPE_CHECKING

import numpy as np

from perfdoctor.report.finding import Evidence, Finding, SourceLocation
from perfdoctor.trace.arrays import BoolArray, Int32Array, Int64Array
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.model import Trace

if TYPE_CHECKING:
    from perfdoctor.rank import Rank

# `perfdoctor run` puts a range "@file:line function" around every torch call and every long call of other code in the
# evidence window: the executing line. Without the function in recordings of 0.1.0.
_EXACT = re.compile(r"^@(?P<file>.+):(?P<line>\d{1,9})(?: (?P<function>.+))?$")
# Kineto names a frame "file(line): function", with the line of the def.
_FRAME = re.compile(r"^(?P<file>[^<].*?)\((?P<line>\d{1,9})\): (?P<function>.+)$")
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|torchaudio|functorch|lightning|pytorch_lightning|accelerate|transformers|deepspeed|apex|numpy)/"
    r"|site-packages|dist-packages|/lib/python\d|(^|/)(threading|runpy|contextlib|functools|multiprocessing/\w+)\.py\("
    r"|perfdoctor/capture|<frozen|^nn\.Module: "
)
# The line of a function's definition is not the line that ran: Python frames know no better.
_DEFINITION = re.compile(r"(async )?def |class |@")
_LONGEST_LINE = 160
# More queries than this for one finding add nothing to a majority.
_ENOUGH = 256


def places(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> list[SourceLocation | None]:
    """For each instant and thread the user's place that was executing, or None."""
    exact = _exact_places(trace, thread, at_ns)
    missing = [i for i, place in enumerate(exact) if place is None]
    if missing and len(trace.frames):
        for i, place in zip(missing, _frame_places(trace, thread[missing], at_ns[missing]), strict=True):
            exact[i] = place
    return exact


def _exact_places(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> list[SourceLocation | None]:
    lines = trace.match_rows(trace.ranges, _EXACT)
    if not lines.any():
        return [None] * len(at_ns)
    r = trace.ranges
    start, end, lane = r.start_ns[lines], r.end_ns[lines], r.thread[lines]
    rows = nesting.innermost(start, end, lane, at_ns, thread)
    names = r.name[lines]
    found: list[SourceLocation | None] = []
    for row in rows.tolist():
        match = _EXACT.match(trace.strings[names[row]]) if row >= 0 else None
        found.append(SourceLocation(match["file"], int(match["line"]), match["function"]) if match else None)
    return found


def _frame_places(trace: Trace, thread: Int32Array, at_ns: Int64Array) -> list[SourceLocation | None]:
    frames = trace.frames
    known = [number for number in set(thread.tolist()) if (frames.thread == number).any()]
    # Old files put all frames on a thread 0/0 of their own.
    lane = np.where(np.isin(thread, known), thread, frames.thread.min()).astype(np.int32)
    rows = nesting.innermost(frames.start_ns, frames.end_ns, frames.thread, at_ns, lane)
    asked = rows.tolist()
    found = {row: _user_frame(trace, row) for row in set(asked)}
    return [found[row] for row in asked]


def _user_frame(trace: Trace, row: int) -> SourceLocation | None:
    """The first frame from `row` outwards that is no library's."""
    while row >= 0:
        place = _user_place(trace.strings[trace.frames.name[row]])
        if place is not None:
            return place
        row = int(trace.frames.parent[row])
    return None


@lru_cache(maxsize=4096)  # all calls of a step stand in the same few frames
def _user_place(frame: str) -> SourceLocation | None:
    """The place that a frame's name tells; None for a library's."""
    match = _FRAME.match(frame)
    if match is None or _LIBRARY.search(frame):
        return None
    return SourceLocation(match["file"], int(match["line"]), match["function"])


def doing(trace: Trace, thread: int, at_ns: int) -> str | None:
    """What a thread was in at an instant.

    The innermost op, else the innermost range; None when the trace has neither there.
    """
    lane, at = np.array([thread], np.int32), np.array([at_ns], np.int64)
    ops, ranges = trace.ops, trace.ranges
    row = int(nesting.innermost(ops.start_ns, ops.end_ns, ops.thread, at, lane)[0])
    if row >= 0:
        return trace.text(int(ops.name[row]))
    row = int(nesting.innermost(ranges.start_ns, ranges.end_ns, ranges.thread, at, lane)[0])
    name = trace.text(int(ranges.name[row])) if row >= 0 else None
    return None if name is not None and name.startswith("ProfilerStep#") else name


def commonest(found: Iterable[SourceLocation | None]) -> SourceLocation | None:
    """The place named most often; None when none is."""
    counts = Counter(place for place in found if place is not None)
    return counts.most_common(1)[0][0] if counts else None


def location_of_calls(run: Rank, rows: Int32Array) -> SourceLocation | None:
    """Where in the user's code most of some runtime calls were made."""
    some = rows[:_ENOUGH]
    calls = run.trace.calls
    return commonest(places(run.trace, calls.thread[some], calls.start_ns[some]))


def location_of_items(run: Rank, rows: BoolArray | Int64Array) -> SourceLocation | None:
    """Where in the user's code most of some GPU items were launched."""
    calls = run.trace.gpu.call[rows]
    return location_of_calls(run, calls[calls >= 0])


def location_of_op(run: Rank, name: str) -> SourceLocation | None:
    """Where the user's code calls an op, from the evidence window when the analysed one has no places."""
    for trace in (run.trace, run.evidence_trace):
        if trace is None:
            continue
        rows = np.flatnonzero(trace.match_rows(trace.ops, f"^{re.escape(name)}$") & (trace.ops.parent < 0))[:_ENOUGH]
        found = commonest(places(trace, trace.ops.thread[rows], trace.ops.start_ns[rows]))
        if found is not None:
            return found
    return None


def location_of_range(run: Rank, pattern: str) -> SourceLocation | None:
    """Where the user's code was when ranges whose name fits the pattern began."""
    for trace in (run.trace, run.evidence_trace):
        if trace is None:
            continue
        rows = np.flatnonzero(trace.match_rows(trace.ranges, pattern))[:_ENOUGH]
        found = commonest(places(trace, trace.ranges.thread[rows], trace.ranges.start_ns[rows]))
        if found is not None:
            return found
    return None


def quoting(findings: Iterable[Finding], text_of: Callable[[str, int], str]) -> tuple[Finding, ...]:
    """Findings with the text of their line as first evidence.

    Args:
        findings: What the rules found.
        text_of: The text of a line of a file, "" where it cannot be read (an analyzer reads no files: the caller may).
    """
    return tuple(_quoting(finding, text_of) for finding in findings)


def _quoting(finding: Finding, text_of: Callable[[str, int], str]) -> Finding:
    place = finding.location
    # A path that is not whole would be looked for here, and another file of that name be quoted.
    if place is None or place.line is None or not (isabs(place.file) and place.file.endswith(".py")):
        return finding
    text = text_of(place.file, place.line).strip()
    if not text or _DEFINITION.match(text):
        return finding
    return replace(finding, evidence=(Evidence("source line", text[:_LONGEST_LINE]), *finding.evidence))
