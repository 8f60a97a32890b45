"""Runs of pointwise kernels that one kernel could do, and what that would save.

Each pointwise kernel reads its inputs from memory and writes its result there. Where the next one reads that result, a
fused kernel keeps it in registers: an intermediate is written and read once less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.traffic_kinds import COPY, POINTWISE
from perfdoctor.gpu.roofline.kernel_bounds import LATENCY
from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs, TensorInput, UnusableInputsError
from perfdoctor.rank import Rank
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int64Array
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import MEMSET


@dataclass(frozen=True, slots=True, eq=False)
class Chains:
    """Runs of pointwise kernels; arrays of one length, one row a kernel, in the order of streams and time.

    Attributes:
        rows: The GPU items.
        run: Number of the run, from 0.
        saved_ns: At most so much of each kernel's time goes into intermediates that a fused kernel would not move.
        saved_bytes: Traffic of those intermediates; NaN where sizes are not known.
    """

    rows: Int64Array
    run: Int64Array
    saved_ns: FloatArray
    saved_bytes: FloatArray

    @property
    def position(self) -> Int64Array:
        """Place of each kernel in its run, from 0."""
        place = np.arange(len(self.run))
        first = np.flatnonzero(np.diff(self.run, prepend=-1))
        result: Int64Array = place - first[self.run]
        return result

    @property
    def count(self) -> int:
        """Number of runs."""
        return int(self.run[-1]) + 1 if len(self.run) else 0


def chains_of(rank: Rank, shortest: int) -> Chains:
    """The runs of at least `shortest` pointwise kernels of the window on one stream.

    Kernels that are too short to matter, reductions and copies may stand between: what fuses pointwise work fuses
    through them, and they are not counted. Anything else ends a run: matrix maths, norms, collectives, the optimizer,
    another launching thread (forward and backward), the end of a step, code that is compiled already, and the same
    kernel of the same op again, as loops over tensors have it. Where sizes are recorded, each kernel of a run reads
    something as large as what the one before wrote; where they are not, that is taken for granted.
    """
    rows, thread, block = _blocks(rank)
    if not len(rows):
        none = np.zeros(0, np.int64)
        return Chains(none, none, np.zeros(0), np.zeros(0))
    links = _Links.between(rank, rows)
    linked = links.linked & (block[1:] == block[:-1]) & (thread[1:] == thread[:-1])
    run = np.cumsum(np.append(True, ~linked)) - 1
    size = np.bincount(run)
    saved_ns, saved_bytes = links.saved(rank, rows, linked, run)
    keep = size[run] >= shortest
    numbers = np.cumsum(size >= shortest) - 1
    return Chains(rows[keep], numbers[run[keep]], saved_ns[keep], saved_bytes[keep])


def _blocks(rank: Rank) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The pointwise kernels in order of stream and time, their launching threads, and between which breaks they lie."""
    gpu, traffic = rank.trace.gpu, rank.traffic
    order = np.lexsort((gpu.start_ns, gpu.stream, gpu.device))
    latency = rank.bounds.kind == LATENCY
    member = (traffic.kind == POINTWISE) & ~latency & ~traffic.is_compiled
    through = _transparent(rank) | latency | (traffic.kind == COPY)
    breaks = (~member & ~through)[order]
    step = np.searchsorted(rank.steps.intervals[:, 0], gpu.start_ns, side="right")
    lane = np.zeros(len(order), bool)
    for column in (gpu.stream[order], gpu.device[order], step[order]):
        lane[1:] |= column[1:] != column[:-1]
    block = np.cumsum(breaks | lane)
    rows, block = order[member[order]], block[member[order]]
    call = gpu.call[rows]
    threads = rank.trace.calls.thread
    thread = np.full(len(rows), -1, np.int64)
    thread[call >= 0] = threads[call[call >= 0]]
    return rows, thread, block


def _transparent(rank: Rank) -> BoolArray:
    """Reductions, and sets of memory."""
    reductions = rank.kernel_classes.match_rows(lambda k: k.category == "reduction" and k.tensor_core == "na")
    result: BoolArray = reductions | (rank.trace.gpu.kind == MEMSET)
    return result


class _Links(NamedTuple):
    """Between each kernel and the next.

    Attributes:
        linked: Whether the next reads what the kernel wrote, as far as can be seen.
        bytes: Size of what lies between; NaN where not known.
        whole: Traffic of each kernel; NaN where not known.
    """

    linked: BoolArray
    bytes: FloatArray
    whole: FloatArray

    @classmethod
    def between(cls, rank: Rank, rows: Int64Array) -> _Links:
        trace = rank.trace
        op = trace.gpu.op[rows]
        at = np.where(op >= 0, op, 0)
        columns = tuple(
            np.where(op >= 0, column[at], -1).astype(np.int32) if len(trace.ops) else np.full(len(op), -1, np.int32)
            for column in (trace.ops.name, trace.ops.dims, trace.ops.types, trace.ops.strides)
        )
        which, first = distinct_rows(columns, len(trace.strings))
        flows = [
            _Flow.read(*map(trace.text, codes)) for codes in zip(*(c[first].tolist() for c in columns), strict=True)
        ]
        recorded = "shapes" in rank.available_data
        pair, at = distinct_rows((which[:-1], which[1:]), len(first))
        read = [_between(flows[a], flows[b]) for a, b in zip(which[at].tolist(), which[at + 1].tolist(), strict=True)]
        between = np.array(read, np.float64)[pair]
        name, called = trace.gpu.name[rows], columns[0]
        differs = (name[1:] != name[:-1]) | (called[1:] != called[:-1])
        linked: BoolArray = differs & (between > 0) if recorded else differs
        whole = np.array([np.nan if flow is None else flow.whole for flow in flows], np.float64)[which]
        known = rank.kernel_costs.bytes[rows]
        return cls(linked, between, np.where(np.isnan(known), whole, known))

    def saved(self, rank: Rank, rows: Int64Array, linked: BoolArray, run: Int64Array) -> tuple[FloatArray, FloatArray]:
        """The most that fusion saves of each kernel, in ns and bytes."""
        dur = rank.trace.gpu.dur_ns[rows].astype(np.float64)
        moved = np.zeros(len(rows))
        moved[:-1] += np.where(linked, self.bytes, 0)
        moved[1:] += np.where(linked, self.bytes, 0)
        moved = np.fmin(moved, self.whole)
        by_bytes = dur * moved / self.whole
        # Without sizes: the fused kernel takes no less than about the longest of the run.
        longest = np.zeros(int(run[-1]) + 1)
        np.maximum.at(longest, run, dur)
        total = np.bincount(run, weights=dur)
        by_time = dur * (1 - longest / np.maximum(total, 1))[run]
        return np.where(np.isnan(by_bytes), by_time, by_bytes), moved


class _Flow(NamedTuple):
    """What one kind of pointwise op reads and writes, by its recorded inputs."""

    inputs: tuple[TensorInput, ...]
    written: int  # elements

    @classmethod
    def read(cls, name: str | None, dims: str | None, types: str | None, strides: str | None) -> _Flow | None:
        """None where the sizes are not recorded or make no sense."""
        if dims is None or types is None:
            return None
        try:
            recorded = RecordedInputs.parse(dims, types, strides, None)
            tensors = [recorded.tensor(i) for i in range(len(recorded.sizes)) if recorded.has_elements(i)]
        except UnusableInputsError:
            return None
        if not tensors:
            return None
        # A copy's first argument is what it writes.
        source = tensors[1:] if name == "aten::copy_" and len(tensors) > 1 else tensors
        return cls(tuple(source), max(tensor.numel for tensor in tensors))

    @property
    def whole(self) -> float:
        """Bytes read and written, with a result as wide as the widest input."""
        widest = max(tensor.item_bytes for tensor in self.inputs)
        return float(sum(tensor.bytes for tensor in self.inputs) + self.written * widest)


def _between(before: _Flow | None, after: _Flow | None) -> float:
    """Bytes of what one op wrote, if it is as large as an input of the next; else 0; NaN where either is not known."""
    if before is None or after is None:
        return np.nan
    return float(max((tensor.bytes for tensor in after.inputs if tensor.numel == before.written), default=0))
