"""The line of the user's code that each piece of work belongs to.

The engine runs the backward pass while the loop waits in `loss.backward()`: that line says nothing of where the time
goes. By the numbers of autograd its work goes to the lines that made the nodes of the graph.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.analysis.forward_ops import ForwardOps
from perfdoctor.analysis.host.locations import SourceLocation, code_locations
from perfdoctor.analysis.host.time_by_line import loop_thread_of
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import NONE, Int32Array, Int64Array, IntArray
from perfdoctor.trace.tables.model import Trace


def code_lines_of_work(
    trace: Trace, joins: ForwardOps, at_ns: Int64Array, thread: IntArray, op: IntArray
) -> tuple[list[SourceLocation], Int32Array]:
    """The user's lines, each once, and for each piece of work the number of its line; NONE where it is not known.

    A line of the user's own that a node of the backward pass calls (a custom function, or an activation that is
    computed again) keeps its work. What has no forward op belongs to the line at which it was launched. `at_ns` is when
    each was launched on the CPU, `op` the innermost op that launched it: NONE where not known.
    """
    ops = trace.ops
    known = np.flatnonzero(at_ns >= 0)
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
    return locations, code


def _threads_with_lines(trace: Trace, thread: IntArray) -> Int32Array:
    """The threads themselves; the loop's, which waits in backward(), for those of the engine, which have no lines."""
    ranges, frames = trace.ranges, trace.frames
    has_lines = np.zeros(len(trace.threads) + 1, bool)
    has_lines[ranges.thread[trace.match_rows(ranges, vocabulary.SOURCE_MARK)]] = True
    has_lines[frames.thread] = True
    return np.where(has_lines[thread], thread, loop_thread_of(trace)).astype(np.int32)
