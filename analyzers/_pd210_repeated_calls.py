"""Calls of a module with the very tensors of an earlier one: PD210 finds them by the marks of a capture."""

from __future__ import annotations

import numpy as np

from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.analyzers._module_calls import lines_of_module_calls
from perfdoctor.analyzers._pd210_unused_values import Work, WorkKind
from perfdoctor.rules import Rank, most_common_location, vocabulary
from perfdoctor.rules import intervals as iv

# What a call computes again is gone; at worst what its graph keeps alive costs some of it.
_REPEATED = WorkKind(
    "repeat", "Modules compute the same again, from the very tensors of an earlier call ({:,} a step)", (0.0, 0.05, 0.3)
)


def find_repeated_calls(shaped: Rank) -> dict[WorkKind, Work]:
    """The calls of a training that `perfdoctor run` saw repeated; a benchmark gives its model the same on purpose."""
    trace, ranges = shaped.trace, shaped.trace.ranges
    marks = np.flatnonzero(trace.match_rows(ranges, vocabulary.REPEATED_CALL_MARK))
    number = shaped.count_per_step(int((shaped.steps.at(ranges.start_ns[marks]) >= 0).sum()))
    if not number or not shaped.forward_ops.has_numbers:
        return {}
    rows = ops_of_program(trace, shaped.window)
    rows = rows[iv.contains(iv.union(ranges.start_ns[marks], ranges.end_ns[marks]), trace.ops.start_ns[rows])]
    line = most_common_location(lines_of_module_calls(trace, rows))
    return {_REPEATED: Work(rows, number, location=line)} if len(rows) else {}
