"""Which place each piece of a window belongs to, and by what it is found again in another window of the program."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import (
    SourceLocation,
    code_locations,
    has_locations,
    innermost_frame,
    loop_thread_of,
    name_files_alike,
    parse_user_frame,
)
from perfdoctor.analysis.host.module_tree import ModuleTree
from perfdoctor.analysis.timeline.own_time import LOADER, label_ops
from perfdoctor.places.pieces import Pieces, neighbouring_ops
from perfdoctor.places.place import OUTSIDE, PlaceName
from perfdoctor.trace import activity_kinds, vocabulary
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables import nesting
from perfdoctor.trace.tables.distinct import distinct, distinct_rows
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import MEMCPY, Trace

PHASES = ("loader", "zero_grad", "optimizer", "backward", "forward", "other")
BETWEEN = "\0"
"""With what the label of Python between two ops, or of a copy, begins, that no name of an op has."""
_NO_ANNOTATIONS = (vocabulary.PROFILER_STEP, vocabulary.COUNTED_STEP, vocabulary.OWN_MARK, vocabulary.SOURCE_MARK)


_BUILT_IN = re.compile(r"built-in (?:function|method) (?P<name>\w+)(?: of (?P<owner>\S+).*)?")
_OWNERS = frozenset(("bytes", "dict", "list", "set", "str", "tuple"))


class Labels(NamedTuple):
    """What each piece is, in words that another window of the same program has as well.

    Attributes:
        phase: The part of the loop, an index into PHASES.
        outer: The op that Python called, of a backward pass the one that it is for; a number in `names`.
        inner: The innermost op, of a backward pass the node; the same.
        outer_op: The row of the outer op in `Trace.ops`; NONE where there is none.
        names: The names, each once; "" of what is no op.
    """

    phase: Int64Array
    outer: Int64Array
    inner: Int64Array
    outer_op: Int32Array
    names: list[str]


def label_pieces(
    trace: Trace, joins: ForwardOps, pieces: Pieces, loading: Intervals, *, with_neighbours: bool = False
) -> Labels:
    """The labels of some pieces; `loading` is when the loop waits for its DataLoader.

    `with_neighbours` labels Python by the ops before and after it, and copies by their sizes: they are the same code in
    another window, however long.
    """
    ranges, at_ns = trace.ranges, pieces.at_ns
    phase = np.full(len(at_ns), PHASES.index("other"))

    def marked(pattern: str) -> Intervals:
        rows = trace.match_rows(ranges, pattern)
        return iv.union(ranges.start_ns[rows], ranges.end_ns[rows])

    in_backward = np.append(joins.in_backward, False)[pieces.op]
    for name, inside in (
        ("forward", iv.contains(marked(vocabulary.FORWARD_RANGE), at_ns)),
        ("backward", in_backward | iv.contains(marked(vocabulary.BACKWARD_RANGE), at_ns)),
        ("optimizer", iv.contains(marked(vocabulary.OPTIMIZER_STEP), at_ns) & ~in_backward),
        ("zero_grad", iv.contains(marked(vocabulary.ZERO_GRAD), at_ns)),
        ("loader", iv.contains(loading, at_ns)),
    ):
        phase[inside] = PHASES.index(name)
    forward = np.append(joins.forward, np.int32(NONE))[pieces.op]
    called = np.where(forward >= 0, forward, pieces.op)
    outer_op = nesting.outermost(np.append(trace.ops.parent, np.int32(NONE)), called)
    known = np.flatnonzero(pieces.op >= 0)
    names, label, _ = label_ops(trace, np.concatenate((outer_op[known], pieces.op[known])))
    number_of = {name: number for number, name in enumerate(dict.fromkeys(("", *names)))}
    numbers = np.array([number_of[name] for name in names], np.int64)
    outer, inner = np.zeros(len(at_ns), np.int64), np.zeros(len(at_ns), np.int64)
    outer[known], inner[known] = np.split(numbers[label], 2) if len(known) else (0, 0)
    if with_neighbours:
        gpu = trace.gpu
        copies = np.flatnonzero((pieces.item >= 0) & (np.append(gpu.kind, 0)[pieces.item] == MEMCPY))
        for piece, item in zip(copies.tolist(), pieces.item[copies].tolist(), strict=True):
            name = f"{BETWEEN}{trace.strings[gpu.name[item]]}{BETWEEN}{gpu.bytes[item]}"
            inner[piece] = number_of.setdefault(name, len(number_of))
        python = np.flatnonzero((outer_op < 0) & (at_ns != NONE))
        neighbours = neighbouring_ops(trace, pieces.thread[python], at_ns[python])
        texts = [*trace.strings, ""]  # NONE finds the last
        before, after = (np.append(trace.ops.name, np.int32(NONE))[side].tolist() for side in neighbours)
        between = [f"{BETWEEN}{texts[first]}{BETWEEN}{texts[last]}" for first, last in zip(before, after, strict=True)]
        inner[python] = [number_of.setdefault(name, len(number_of)) for name in between]
    return Labels(phase, outer, inner, outer_op, list(number_of))


def name_places(
    trace: Trace, joins: ForwardOps, modules: ModuleTree, pieces: Pieces, labels: Labels
) -> tuple[list[PlaceName], Int64Array]:
    """The places, each once, and for each piece the number of its own.

    A piece of a backward pass belongs where its forward op was called.
    """
    at_ns, thread, op = pieces.at_ns, pieces.thread, pieces.op
    number_of: dict[PlaceName, int] = {OUTSIDE: 0}
    place = np.zeros(len(at_ns), np.int64)
    left: Int64Array = np.arange(len(at_ns))

    def give(rows: Int64Array, names: list[PlaceName], code: IntArray) -> Int64Array:
        """Give the pieces with a code their places; returns the others."""
        numbers = np.array([*(number_of.setdefault(name, len(number_of)) for name in names), NONE], np.int64)
        found: Int64Array = numbers[code]
        place[rows[found >= 0]] = found[found >= 0]
        return rows[found < 0]

    if has_locations(trace):
        lines, code = find_lines(trace, joins, at_ns, thread, op)
        left = give(left, lines, code)
    if len(modules) and len(left):
        calls = modules.calls_of_work(joins, at_ns[left], thread[left], op[left])
        paths = [PlaceName("module", module=path) for path in modules.paths]
        left = give(left, paths, np.append(modules.module, NONE)[calls])
    if len(left):
        left = give(left, *_annotations(trace, joins, pieces, left))
    if len(left):
        names = [PlaceName("op", function=name) for name in labels.names]
        left = give(left, names, np.where(labels.outer[left] > 0, labels.outer[left], NONE))
    if len(left):
        gpu, item = trace.gpu, pieces.item[left]
        codes = distinct(gpu.name[item[item >= 0]])
        kernels = [PlaceName("op", function=trace.strings[each]) for each in codes.tolist()]
        number = np.searchsorted(codes, np.append(gpu.name, 0)[item])
        give(left, kernels, np.where(item >= 0, number, NONE))
    return list(number_of), place


def find_lines(
    trace: Trace, joins: ForwardOps, at_ns: Int64Array, thread: IntArray, op: IntArray
) -> tuple[list[PlaceName], Int32Array]:
    """The user's lines, each once, and for each piece of work the number of its line; NONE where it is not known.

    A line of the user's own that a node of the backward pass calls (a custom function, or an activation that is
    computed again) keeps its work. What has no forward op belongs to the line at which it was launched. `at_ns` is when
    each was launched on the CPU, `op` the innermost op that launched it: NONE where not known.
    """
    ops = trace.ops
    known = np.flatnonzero(at_ns != NONE)
    node = np.append(joins.node, NONE)[op[known]]
    joined = np.flatnonzero((node >= 0) & (np.append(joins.forward, NONE)[node] >= 0))
    node = node[joined]
    forward = joins.forward[node]
    # One look-up for the launches, the beginnings of their nodes, and the forward ops.
    instants = np.concatenate((at_ns[known], ops.start_ns[node], ops.start_ns[forward]))
    threads = np.concatenate((thread[known], ops.thread[node], ops.thread[forward]))
    locations, found = code_locations(trace, _threads_with_lines(trace, threads), instants)
    at_launch, at_node, at_forward = np.split(found, [len(known), len(known) + len(joined)])
    own = (at_launch[joined] >= 0) & (at_launch[joined] != at_node)
    at_launch[joined] = np.where(own | (at_forward < 0), at_launch[joined], at_forward)
    code = np.full(len(at_ns), NONE, np.int32)
    code[known] = at_launch
    alike = [each for each in name_files_alike(locations) if each is not None]
    only_line = _at_only_line(trace, alike)
    names = [
        PlaceName("outside" if each.is_in_library else "line", each.file, only_line.get(each, each.line), each.function)
        for each in alike
    ]
    return names, code


def _at_only_line(trace: Trace, locations: list[SourceLocation]) -> dict[SourceLocation, int]:
    """The line of functions that are known by their definition, where all that was recorded of them is one line.

    A call in which a function calls nothing has no line of its own, and other calls of the function have.
    """
    frames = [parse_user_frame(trace.strings[each]) for each in trace.name_ids(trace.frames)]
    marks = [vocabulary.parse_source_mark(trace.strings[each]) for each in trace.name_ids(trace.ranges)]
    definitions = {(frame.line, frame.function) for frame in frames if frame is not None}
    definitions -= {(mark.line, mark.function) for mark in marks if mark is not None}
    lines: dict[tuple[str, str | None], set[int]] = {}
    for each in locations:
        if each.line is not None and (each.line, each.function) not in definitions:
            lines.setdefault((each.file, each.function), set()).add(each.line)
    of_function = ((each, lines.get((each.file, each.function), set())) for each in locations)
    return {each: min(found) for each, found in of_function if len(found) == 1}


def _threads_with_lines(trace: Trace, thread: IntArray) -> Int32Array:
    """The threads themselves; the loop's, which waits in backward(), for those of the engine, which have no lines."""
    ranges, frames = trace.ranges, trace.frames
    has_lines = np.zeros(len(trace.threads) + 1, bool)
    has_lines[ranges.thread[trace.match_rows(ranges, vocabulary.SOURCE_MARK)]] = True
    has_lines[frames.thread] = True
    return np.where(has_lines[thread], thread, loop_thread_of(trace)).astype(np.int32)


def _annotations(
    trace: Trace, joins: ForwardOps, pieces: Pieces, rows: Int64Array
) -> tuple[list[PlaceName], Int64Array]:
    """The innermost range around some pieces that is neither a step nor a mark of the recorder."""
    ranges, ops = trace.ranges, trace.ops
    named = np.flatnonzero(~np.logical_or.reduce([trace.match_rows(ranges, each) for each in _NO_ANNOTATIONS]))
    forward = np.append(joins.forward, NONE)[pieces.op[rows]]
    at_ns = np.where(forward >= 0, np.append(ops.start_ns, 0)[forward], pieces.at_ns[rows])
    thread = np.where(forward >= 0, np.append(ops.thread, 0)[forward], pieces.thread[rows]).astype(np.int32)
    found = nesting.innermost(ranges.start_ns[named], ranges.end_ns[named], ranges.thread[named], at_ns, thread)
    found = np.where(at_ns != NONE, found, NONE)
    codes, first = distinct_rows((ranges.name[named],), len(trace.strings)) if len(named) else (named, named)
    names = [
        PlaceName("annotation", annotation=_name_range(trace.strings[ranges.name[named[each]]]))
        for each in first.tolist()
    ]
    return names, np.append(codes, NONE)[found]


def _name_range(name: str) -> str:
    """A range by what it is around: "AdamW.step", "DataLoader", and its own name without numbers."""
    if re.search(vocabulary.DATALOADER_NEXT, name):
        return LOADER
    return vocabulary.mask_numbers(re.sub(f"{vocabulary.OPTIMIZER_STEP}|{vocabulary.ZERO_GRAD}", "", name))


class CalledFunctions(NamedTuple):
    """The functions of libraries that the user's code calls.

    Attributes:
        names: Their names, each once.
        code: For each piece in which no op runs the number of its function; NONE in the user's own code.
        frames: The rows of `Trace.frames` that are such calls.
        of_frame: The number of the function of each of these.
    """

    names: list[str]
    code: Int64Array
    frames: Int64Array
    of_frame: Int64Array


def called_functions(trace: Trace, pieces: Pieces, entry: Int64Array) -> CalledFunctions:
    """What the user's code called when no op ran, by the frames of `find_entries`."""
    frames, code = trace.frames, np.full(len(pieces.at_ns), NONE, np.int64)
    rows = np.flatnonzero((pieces.op < 0) & (pieces.at_ns != NONE))
    if not len(frames) or not len(rows):
        return CalledFunctions([], code, rows[:0], rows[:0])
    called = np.append(entry, NONE)[innermost_frame(trace, pieces.thread[rows], pieces.at_ns[rows])]
    names = distinct(frames.name[called[called >= 0]])
    code[rows[called >= 0]] = np.searchsorted(names, frames.name[called[called >= 0]])
    calls = np.flatnonzero((entry == np.arange(len(entry))) & np.isin(frames.name, names))
    return CalledFunctions(
        [trace.strings[each] for each in names.tolist()], code, calls, np.searchsorted(names, frames.name[calls])
    )


def name_call(name: str) -> str:
    """A function of a library as a program calls it: "copy.deepcopy", "array"; a module by its class."""
    frame = vocabulary.parse_frame(name)
    if frame is not None:
        return f"{PurePosixPath(frame[0]).stem}.{frame[2]}"
    short = activity_kinds.short_name(name)
    called = _BUILT_IN.fullmatch(short)
    if called is None:
        return short
    # The owner of a function is a type or a module, which says less than its name.
    return f"{called['owner']}.{called['name']}" if called["owner"] in _OWNERS else called["name"]


def find_entries(trace: Trace) -> Int64Array:
    """For each frame the outermost one around it below the innermost frame of the user's; NONE in the user's own code.

    Functions that only call others, and those of the recorder, do not count, nor does what no user's frame is around.
    """
    frames = trace.frames
    user = np.zeros(len(trace.strings) + 1, bool)
    for each in trace.name_ids(frames):
        user[each] = parse_user_frame(trace.strings[each]) is not None
    is_user = user[frames.name]
    wraps = trace.match_rows(frames, vocabulary.RECORDER_FRAME) | trace.match_rows(frames, vocabulary.WRAPPER_FRAME)
    entry = np.full(len(frames), NONE, np.int64)
    above = np.arange(len(frames))
    climbing = np.flatnonzero(~is_user)
    while len(climbing):
        at = above[climbing]
        counts = ~wraps[at]
        entry[climbing[counts]] = at[counts]
        above[climbing] = frames.parent[at]
        lost = above[climbing] < 0
        entry[climbing[lost]] = NONE
        climbing = climbing[~lost]
        climbing = climbing[~is_user[above[climbing]]]
    return entry
