"""Chains of pointwise kernels that one fused kernel could replace, and what that would save.

A pointwise kernel reads its inputs from memory and writes its result there. Where the next kernel reads that result, a
fused kernel leaves it in registers: the intermediate is neither written nor read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.rules import (
    LATENCY,
    MEMSET,
    NONE,
    BoolArray,
    FloatArray,
    Int64Array,
    Rank,
    RecordedInputs,
    TensorInput,
    UnusableInputsError,
    distinct_rows,
    frozen_dataclass,
    traffic_kinds,
)


@frozen_dataclass(eq=False)
class Chains:
    """The kernels of chains, one a row, ordered by stream and start; arrays of one length.

    For example two chains, of three kernels and of four::

        chain     0  0  0  1  1  1  1
        position  0  1  2  0  1  2  3

    Attributes:
        rows: Rows of `Trace.gpu`.
        chain: Number of the kernel's chain, from 0.
        max_saving_ns: The time of the kernel that fusing its chain saves at most.
        saved_bytes: The part of its traffic that a fused kernel would not cause; NaN where sizes are unknown.
    """

    rows: Int64Array
    chain: Int64Array
    max_saving_ns: FloatArray
    saved_bytes: FloatArray

    @property
    def position(self) -> Int64Array:
        """Position of each kernel in its chain, from 0."""
        first = np.flatnonzero(np.diff(self.chain, prepend=-1))
        result: Int64Array = np.arange(len(self.chain)) - first[self.chain]
        return result

    @property
    def count(self) -> int:
        """Number of chains."""
        return int(self.chain[-1]) + 1 if len(self.chain) else 0


def find_chains(rank: Rank, min_kernels: int) -> Chains:
    """The chains of at least `min_kernels` pointwise kernels in the window, each on one stream.

    Latency-bound kernels, reductions, copies and memsets may lie within a chain, and are not part of it: a compiler
    fuses pointwise kernels across them. A chain ends at anything else: matrix maths, norms, collectives, the optimizer,
    compiled code, another launching thread (forward and backward pass), the end of a step. It also ends where a kernel
    is launched again by the same op, as loops over tensors do. Where sizes are recorded, each kernel of a chain reads
    an input as large as the result of the kernel before; without sizes it is assumed to.
    """
    rows, thread, segment = _select_pointwise_kernels(rank)
    if not len(rows):
        return Chains(rows, rows, np.zeros(0), np.zeros(0))
    links = _link_neighbours(rank, rows)
    linked = links.linked & (segment[1:] == segment[:-1]) & (thread[1:] == thread[:-1])
    chain = np.cumsum(np.append(True, ~linked)) - 1
    size = np.bincount(chain)
    max_saving_ns, saved_bytes = _bound_savings(rank.trace.gpu.dur_ns[rows].astype(np.float64), links, linked, chain)
    long_enough = size >= min_kernels
    chosen = long_enough[chain]
    number = np.cumsum(long_enough) - 1
    return Chains(rows[chosen], number[chain[chosen]], max_saving_ns[chosen], saved_bytes[chosen])


def _select_pointwise_kernels(rank: Rank) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The pointwise kernels that could be fused, ordered by device, stream and start.

    Returns:
        Rows of the kernels, the thread that launched each (-1 if unknown), and the number of its segment: chains end
        where a segment ends.
    """
    gpu, traffic = rank.trace.gpu, rank.traffic
    order = np.lexsort((gpu.start_ns, gpu.stream, gpu.device))
    latency_bound = rank.bounds.kind == LATENCY
    fusible = (traffic.kind == traffic_kinds.POINTWISE) & ~latency_bound & ~traffic.is_compiled
    reductions = rank.kernel_classes.match_rows(lambda k: k.category == "reduction" and k.tensor_core == "na")
    fused_across = reductions | (gpu.kind == MEMSET) | latency_bound | (traffic.kind == traffic_kinds.COPY)
    new_segment = (~fusible & ~fused_across)[order]
    step = np.searchsorted(rank.steps.intervals[:, 0], gpu.start_ns, side="right")
    for column in (gpu.stream[order], gpu.device[order], step[order]):
        new_segment[1:] |= column[1:] != column[:-1]
    segment = np.cumsum(new_segment)[fusible[order]]
    rows = order[fusible[order]]
    thread = np.append(rank.trace.calls.thread, NONE)[gpu.call[rows]]
    return rows, thread, segment


@frozen_dataclass(eq=False)
class _Links:
    """What flows from each of n kernels to the next.

    Attributes:
        linked: Whether the next kernel reads what the kernel wrote, as far as the recording tells; n - 1 values.
        intermediate_bytes: Size of what the next kernel reads of it; NaN where unknown; n - 1 values.
        kernel_bytes: Traffic of each kernel; NaN where unknown; n values.
    """

    linked: BoolArray
    intermediate_bytes: FloatArray
    kernel_bytes: FloatArray


def _link_neighbours(rank: Rank, rows: Int64Array) -> _Links:
    """The links between each kernel and the next one."""
    trace = rank.trace
    op = trace.gpu.op[rows]
    columns = tuple(
        np.append(column, np.int32(NONE))[op]
        for column in (trace.ops.name, trace.ops.dims, trace.ops.types, trace.ops.strides)
    )
    # The inputs of each kind of op, and the intermediate of each pair of kinds, are worked out once.
    kind, first = distinct_rows(columns, len(trace.strings))
    traffic = [
        _OpTraffic.parse(*map(trace.text, codes)) for codes in zip(*(c[first].tolist() for c in columns), strict=True)
    ]
    pair, first = distinct_rows((kind[:-1], kind[1:]), len(traffic))
    pairs = zip(kind[first].tolist(), kind[first + 1].tolist(), strict=True)
    pair_bytes = [_size_of_intermediate(traffic[writer], traffic[reader]) for writer, reader in pairs]
    intermediate_bytes = np.array(pair_bytes, np.float64)[pair]
    kernel, op_name = trace.gpu.name[rows], columns[0]
    linked: BoolArray = (kernel[1:] != kernel[:-1]) | (op_name[1:] != op_name[:-1])
    if "shapes" in rank.available_data:
        linked &= intermediate_bytes > 0
    op_bytes = np.array([np.nan if op is None else op.total_bytes for op in traffic], np.float64)[kind]
    known_bytes = rank.kernel_costs.bytes[rows]
    return _Links(linked, intermediate_bytes, np.where(np.isnan(known_bytes), op_bytes, known_bytes))


def _bound_savings(
    dur_ns: FloatArray, links: _Links, linked: BoolArray, chain: Int64Array
) -> tuple[FloatArray, FloatArray]:
    """What fusing saves of each kernel at most, in ns and bytes.

    Each intermediate of a chain is part of the traffic of two kernels, the one that writes it and the one that reads
    it. Fusing saves that share of their time.
    """
    within_chain = np.where(linked, links.intermediate_bytes, 0)
    saved_bytes = np.fmin(np.append(within_chain, 0) + np.append(0, within_chain), links.kernel_bytes)
    saving_by_bytes_ns = dur_ns * saved_bytes / links.kernel_bytes
    # Without sizes: the fused kernel takes at least about as long as the longest kernel of the chain.
    longest_ns = np.zeros(int(chain[-1]) + 1)
    np.maximum.at(longest_ns, chain, dur_ns)
    chain_ns = np.bincount(chain, weights=dur_ns)
    saving_by_time_ns = dur_ns * (1 - longest_ns / np.maximum(chain_ns, 1))[chain]
    return np.where(np.isnan(saving_by_bytes_ns), saving_by_time_ns, saving_by_bytes_ns), saved_bytes


class _OpTraffic(NamedTuple):
    """What one kind of pointwise op reads and writes, by its recorded inputs."""

    inputs: tuple[TensorInput, ...]
    written_elements: int

    @classmethod
    def parse(cls, name: str | None, dims: str | None, types: str | None, strides: str | None) -> _OpTraffic | None:
        """The traffic by texts of `Trace.ops`; None where sizes are not recorded or make no sense."""
        if dims is None or types is None:
            return None
        try:
            recorded = RecordedInputs.parse(dims, types, strides, None)
            tensors = [recorded.tensor(i) for i in range(len(recorded.sizes)) if recorded.has_elements(i)]
        except UnusableInputsError:
            return None
        if not tensors:
            return None
        # The first argument of a copy is what it writes.
        inputs = tensors[1:] if name == "aten::copy_" and len(tensors) > 1 else tensors
        return cls(tuple(inputs), max(tensor.numel for tensor in tensors))

    @property
    def total_bytes(self) -> float:
        """Bytes read and written, if the result is of the widest type of the inputs."""
        item_bytes = max(tensor.item_bytes for tensor in self.inputs)
        return float(sum(tensor.bytes for tensor in self.inputs) + self.written_elements * item_bytes)


def _size_of_intermediate(writer: _OpTraffic | None, reader: _OpTraffic | None) -> float:
    """Bytes of the reader's input that is as large as what the writer wrote; 0 without one, NaN where unknown."""
    if writer is None or reader is None:
        return np.nan
    return float(max((tensor.bytes for tensor in reader.inputs if tensor.numel == writer.written_elements), default=0))
