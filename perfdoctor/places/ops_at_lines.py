"""The ops of a step at the lines of the user's code that call them, with the sizes of their inputs.

The backward pass counts for the lines of its forward ops, where these were recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np
import orjson

from perfdoctor.analysis.forward_ops import forward_ops_of
from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.timeline.own_time import cut_by_op, label_gpu_items
from perfdoctor.places.name_places import find_lines
from perfdoctor.trace.arrays import NONE, IntArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Trace

Sizes: TypeAlias = tuple[tuple[int, ...], ...]
"""The sizes of the tensors that a call gets, those in lists as well."""


class OpAtLine(NamedTuple):
    """What a name of the table of ops stands for at one line of the user's code.

    Attributes:
        name: An op, "addmm backward", or the step of an optimizer.
        location: The line; None where it is not known.
        share: What part (0 to 1) of the time of its name it takes.
        calls: How often a step runs it there; of a backward pass its nodes.
        smallest, largest: Of the largest inputs of each step the smallest and the largest; empty where those of some
            step are not known.
        shapes: All inputs of its calls, as recorded.
    """

    name: str
    location: SourceLocation | None
    share: float
    calls: float
    smallest: Sizes
    largest: Sizes
    shapes: frozenset[str]


def find_ops_at_lines(trace: Trace, steps: Intervals, loading: Intervals, *, on_gpu: bool) -> tuple[OpAtLine, ...]:
    """The ops of some steps by name and line; time that no op takes is left out."""
    ops, window = trace.ops, iv.union_of((steps,))
    call: IntArray
    if on_gpu:
        items = np.flatnonzero(trace.gpu.op >= 0)
        names, name, _, call = label_gpu_items(trace, items)
        op, time_ns = trace.gpu.op[items], iv.overlap(trace.gpu.start_ns[items], trace.gpu.end_ns[items], window)
    else:
        pieces = cut_by_op(trace, window, loading)
        names, name, op, call = pieces.names, pieces.row, pieces.op, pieces.call
        time_ns = pieces.intervals[:, 1] - pieces.intervals[:, 0]
    rows = np.flatnonzero((op >= 0) & (time_ns > 0))
    op, name, call, time_ns = op[rows], name[rows], call[rows], time_ns[rows]
    found, line = find_lines(trace, forward_ops_of(trace), ops.start_ns[op], ops.thread[op], op)
    locations = [*(place.location for place in found), None]  # code NONE finds the last
    total_ns = dict.fromkeys(names, 0)
    members: dict[tuple[str, SourceLocation | None], list[int]] = defaultdict(list)
    for row, (number, code, ns) in enumerate(zip(name.tolist(), line.tolist(), time_ns.tolist(), strict=True)):
        total_ns[names[number]] += ns
        members[names[number], locations[code]].append(row)
    dims = {NONE: ""} | {code: trace.strings[code] for code in set(ops.dims[op].tolist()) - {NONE}}
    sizes = {code: _sizes_of(text) for code, text in dims.items()}
    step = np.searchsorted(steps[:, 0], ops.start_ns, "right")
    result = []
    for (label, location), some in members.items():
        codes, step_of = ops.dims[op[some]], step[op[some]]
        of_steps = [
            max((sizes[code] for code in set(codes[step_of == each].tolist())), key=count_elements)
            for each in distinct(step_of)
        ]
        of_steps.sort(key=count_elements)
        smallest, largest = (of_steps[0], of_steps[-1]) if count_elements(of_steps[0]) else ((), ())
        share = int(time_ns[some].sum()) / total_ns[label]
        shapes = frozenset(dims[code] for code in set(codes.tolist()))
        calls = len(distinct(call[some])) / max(len(steps), 1)
        result.append(OpAtLine(label, location, share, calls, smallest, largest, shapes))
    return tuple(result)


def count_elements(sizes: Sizes) -> int:
    """The elements of all tensors of a call."""
    return sum(map(math.prod, sizes))


def _sizes_of(dims: str) -> Sizes:
    """The sizes of the tensors in recorded shapes, as `[[[640,256],[32,256]],[]]`: numbers have none.

    Nor has a tensor of a single number, which looks the same.
    """
    try:
        values = orjson.loads(dims)
    except orjson.JSONDecodeError:
        return ()
    found, rest = [], [values]
    while rest:
        value = rest.pop()
        if isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            found.append(tuple(value))
        elif isinstance(value, list):
            rest += reversed(value)
    return tuple(found)
