"""Steps from the kernels alone: the sequence of names on the busiest stream comes back again and again.

Layers repeat as well as steps do. So a cycle counts as a step only where each of its borders is the border of a loop:
the backward pass ends, the optimizer ends, the CPU waits, a batch is copied, a graph is launched. Where a file has no
GPU items, the outermost ops of the busiest thread serve in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, Int64Array, IntArray
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import GpuItems, Table, Trace
from perfdoctor.trace.tables.step_marks import select_busiest_thread

_MIN_CYCLES = 3
_MIN_CYCLE = 2
_MIN_COVERAGE = 0.5
# The names of so many items in a row are one word: a single kernel stands in many places of a step.
_WORD = 4
# So many distances between equal words are tried. In the traces at hand the right one is among the first five.
_CANDIDATES = 24


class Cycle(NamedTuple):
    """A part of a sequence that repeats exactly.

    Attributes:
        start: Index at which the repetition begins.
        length: Number of items in a cycle.
        end: Index behind the last item that repeats: the last cycle may be cut.
    """

    start: int
    length: int
    end: int

    @property
    def times(self) -> int:
        """How many whole cycles there are."""
        return (self.end - self.start) // self.length


def find_cycle(symbols: IntArray) -> Cycle | None:
    """The repetition that covers most of a sequence, by the shortest cycle; None where nothing repeats three times.

    Words of some symbols that stand once in a cycle come back after exactly one cycle. Each word votes for the
    distances to its next occurrence, and the distances with the most votes are tried on the whole sequence. That takes
    30 ms for 200,000 items.
    """
    n = len(symbols)
    if n < max(_MIN_CYCLES * _MIN_CYCLE, 2 * _WORD):
        return None
    words = np.zeros(n - _WORD + 1, np.uint64)
    for k in range(_WORD):
        words = words * np.uint64(1_000_003) + symbols[k : n - _WORD + 1 + k].astype(np.uint64) + np.uint64(7)
    order = np.argsort(words, kind="stable")
    again = words[order[1:]] == words[order[:-1]]
    if not again.any():
        return None
    word = np.cumsum(np.append(True, ~again)) - 1
    occurrences = np.bincount(word)[word[1:][again]]
    votes = np.bincount(np.diff(order)[again], 1 / (occurrences - 1))
    tried = np.argsort(-votes, kind="stable")[:_CANDIDATES]
    best: Cycle | None = None
    for length in np.sort(tried[(votes[tried] > 0) & (tried >= _MIN_CYCLE)]).tolist():
        start, end = _longest_run(symbols[length:] == symbols[:-length])
        found = Cycle(start, length, end + length)
        if found.times >= _MIN_CYCLES and (best is None or found.end - found.start > best.end - best.start):
            best = found
    return best


def _longest_run(matches: BoolArray) -> tuple[int, int]:
    """Begin and end of the longest run of True; of equals the first."""
    borders = np.flatnonzero(np.diff(np.concatenate(([False], matches, [False])).astype(np.int8)))
    if not len(borders):
        return 0, 0
    starts, ends = borders[::2], borders[1::2]
    longest = int((ends - starts).argmax())
    return int(starts[longest]), int(ends[longest])


class _Signs(NamedTuple):
    """For each sign of a loop's border, strong ones and weaker ones, whether it stands right before each item."""

    strong: tuple[BoolArray, ...]
    weak: tuple[BoolArray, ...]


class CycleSpans(NamedTuple):
    """The spans of the cycles: of launches on the CPU, or of the items themselves where those do not tell."""

    spans: Intervals
    on_gpu: bool


_FOUND: WeakKeyDictionary[Table, CycleSpans | None] = WeakKeyDictionary()
"""The cycles of each table of items: several facts ask for the steps of the same trace."""


def find_cyclic_steps(trace: Trace) -> CycleSpans | None:
    """The spans of steps by the cycle of the kernels, or of the ops; None where nothing repeats like steps."""
    table = trace.gpu if len(trace.gpu) else trace.ops
    if table not in _FOUND:
        _FOUND[table] = _find_cyclic_steps(trace) if len(trace.gpu) else _find_cycles_of_ops(trace)
    return _FOUND[table]


def _find_cyclic_steps(trace: Trace) -> CycleSpans | None:
    rows = _select_busiest_stream(trace.gpu)
    borders = _find_steps_of(rows, trace.gpu.name, lambda: (_pauses_before(trace, rows), _find_borders(trace, rows)))
    if borders is None or _are_inside_one_pass(trace, rows, borders.first):
        return None
    return _spans_between(trace, rows, borders.first, borders.length)


def _find_cycles_of_ops(trace: Trace) -> CycleSpans | None:
    ops = trace.ops
    rows = select_busiest_thread(ops, ops.parent < 0)
    borders = _find_steps_of(rows, ops.name, lambda: (_pauses_between_ops(trace, rows), _find_op_borders(trace, rows)))
    if borders is None:
        return None
    starts = ops.start_ns[rows[borders.first]]
    end_ns = int(ops.end_ns[rows[borders.first[-1] + borders.length - 1]])
    return CycleSpans(np.column_stack((starts, np.append(starts[1:], end_ns))), on_gpu=False)


class _Borders(NamedTuple):
    """The first item of each step, as indices of a sequence, and how many items a step has."""

    first: Int64Array
    length: int


def _find_steps_of(
    rows: Int64Array, name: IntArray, read_signs: Callable[[], tuple[Int64Array, _Signs]]
) -> _Borders | None:
    """The steps of a sequence of rows that repeats by their names; None where it does not, or not like steps.

    `read_signs` gives for each row the pause before it, and the signs of a loop's border: they are not read where
    nothing repeats.
    """
    cycle = find_cycle(name[rows])
    if cycle is None or cycle.end - cycle.start < _MIN_COVERAGE * len(rows):
        return None
    first = _find_border(cycle, len(rows), *read_signs())
    if first is None:
        return None
    borders = np.arange(first, cycle.end - cycle.length + 1, cycle.length)
    return _Borders(borders, cycle.length) if len(borders) >= _MIN_CYCLES else None


def _select_busiest_stream(gpu: GpuItems) -> Int64Array:
    """The rows of the stream that has most items."""
    if not len(gpu):
        return np.empty(0, np.int64)
    _, which, count = np.unique(gpu.stream * 64 + gpu.device, return_inverse=True, return_counts=True)
    return np.flatnonzero(which == count.argmax())


def _launch_ns(trace: Trace, rows: Int64Array) -> Int64Array | None:
    """When each item was launched; None where some launch is not recorded or lies behind its item."""
    call = trace.gpu.call[rows]
    if not len(rows) or (call < 0).any():
        return None
    launched = trace.calls.start_ns[call]
    return None if (launched > trace.gpu.start_ns[rows]).any() else launched


def _find_border(cycle: Cycle, count: int, pauses_ns: Int64Array, signs: _Signs) -> int | None:
    """The index of the first item of the first whole step; None where no border of a loop comes back each cycle."""
    whole = slice(cycle.start, cycle.start + cycle.times * cycle.length)
    pause_ns = pauses_ns[whole].reshape(cycle.times, cycle.length)[1:]
    # Where nothing but the repetition was recorded, weaker signs count, too. One pass through layers that are alike
    # begins and ends with something else.
    bare = cycle.end == count and (cycle.start == 0 or cycle.start >= cycle.length)
    for sign in signs.strong + (signs.weak if bare else ()):
        # The item before the first one is another's; so the first cycle may lack the sign.
        each_time: BoolArray = sign[whole].reshape(cycle.times, cycle.length)[1:].min(axis=0)
        if each_time[0]:
            return cycle.start
        if each_time.any():
            typical_ns = np.where(each_time, np.median(pause_ns, axis=0), -1.0)
            return cycle.start + int(typical_ns.argmax())
    return None


def _pauses_between_ops(trace: Trace, rows: Int64Array) -> Int64Array:
    """For each op how long before it no op ran; 0 for the first one."""
    starts, ends = trace.ops.start_ns[rows], trace.ops.end_ns[rows]
    return starts - np.append(starts[:1], ends[:-1])


def _find_op_borders(trace: Trace, rows: Int64Array) -> _Signs:
    """The signs of a loop's border before each of some outermost ops: a backward pass ended, an input is made."""
    backward, made, read = (
        trace.match_rows(trace.ops, pattern)[rows]
        for pattern in (vocabulary.BACKWARD_NODE, vocabulary.INPUT_OP, vocabulary.ITEM_OP)
    )
    return _Signs((_after(backward) & ~backward,), (made & ~_after(made), _after(read) & ~read))


def _pauses_before(trace: Trace, rows: Int64Array) -> Int64Array:
    """For each item how long before it nothing was launched, or where launches are unknown nothing ran."""
    launched = _launch_ns(trace, rows)
    if launched is not None:
        return np.diff(launched, prepend=launched[:1])
    ends = np.maximum.accumulate(trace.gpu.end_ns[rows])
    result: Int64Array = np.maximum(trace.gpu.start_ns[rows] - np.append(trace.gpu.start_ns[rows[:1]], ends[:-1]), 0)
    return result


def _find_borders(trace: Trace, rows: Int64Array) -> _Signs:
    """For each sign of a loop's border whether it stands right before each item."""
    gpu, calls = trace.gpu, trace.calls
    optimizer = trace.match_rows(gpu, vocabulary.OPTIMIZER_KERNEL)[rows]
    direction = copy_kinds_of(trace).direction[rows]
    to_host, to_device = direction == vocabulary.DTOH, direction == vocabulary.HTOD
    strong = [_after(optimizer) & ~optimizer]
    weak = [_after(to_host), to_device & ~_after(to_device)]
    launched = _launch_ns(trace, rows)
    if launched is not None:
        call = gpu.call[rows]
        backward = np.flatnonzero(trace.match_rows(trace.ops, vocabulary.BACKWARD_NODE))
        on_autograd = np.isin(calls.thread[call], distinct(trace.ops.thread[backward]))
        # Autograd's engine has a thread of its own; where the backward pass runs in the loop's this tells nothing.
        strong.insert(0, _after(on_autograd) & ~on_autograd)
        waits = np.sort(calls.start_ns[trace.match_rows(calls, vocabulary.SYNC_CALL)])
        waited = np.diff(np.searchsorted(waits, launched), prepend=0) > 0
        graphs = trace.match_rows(calls, vocabulary.GRAPH_LAUNCH_CALL)[call]
        weak = [waited, *weak, graphs & np.append(True, np.diff(call) != 0)]
    return _Signs(tuple(strong), tuple(weak))


def _after(flags: BoolArray) -> BoolArray:
    """For each item whether a flag holds for the one before it."""
    return np.append(False, flags[:-1])


def _are_inside_one_pass(trace: Trace, rows: Int64Array, borders: Int64Array) -> bool:
    """Whether an op, a module's call or a range around a pass lies around a border: then layers repeat, not steps."""
    launched = _launch_ns(trace, rows)
    if launched is None:
        return False
    before, behind = launched[borders[1:] - 1], launched[borders[1:]]
    thread = trace.calls.thread[trace.gpu.call[rows[borders[1:]]]]
    passes = trace.match_rows(trace.ranges, vocabulary.PASS_RANGE)
    modules = trace.match_rows(trace.frames, vocabulary.MODULE_FRAME)
    for table, wanted in ((trace.ops, trace.ops.parent < 0), (trace.ranges, passes), (trace.frames, modules)):
        for one in distinct(thread).tolist():
            at = np.flatnonzero(wanted & (table.thread == one))
            if not len(at):
                continue
            ends = np.maximum.accumulate(table.end_ns[at])
            last = np.searchsorted(table.start_ns[at], before[thread == one], side="right") - 1
            if ((last >= 0) & (ends[last] > behind[thread == one])).any():
                return True
    return False


def _spans_between(trace: Trace, rows: Int64Array, borders: Int64Array, length: int) -> CycleSpans | None:
    launched = _launch_ns(trace, rows)
    at_ns = trace.gpu.start_ns[rows] if launched is None else launched
    last = rows[borders[-1] : borders[-1] + length]
    last_ns = (
        int(trace.gpu.end_ns[last].max()) if launched is None else int(trace.calls.end_ns[trace.gpu.call[last]].max())
    )
    starts = at_ns[borders]
    if (np.diff(starts) <= 0).any():  # one graph launched several cycles
        return None
    return CycleSpans(np.column_stack((starts, np.append(starts[1:], last_ns))), launched is None)
