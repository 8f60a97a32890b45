"""PD206: many matrix products that are too small for the GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.gpu.roofline.kernel_bounds import SHORTEST_KERNEL_NS
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS, matrix_rows
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray, FloatArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct

_CELL = r"(?i)(lstm|gru|rnn_tanh|rnn_relu)_cell"
# Twice the shortest time of any kernel: a product whose maths and traffic take no longer is bound by neither.
_NO_LONGER = 2


class SmallMatmuls(RankAnalyzer):
    """Many matrix products in a step are so small that latency, not maths, sets their time.

    What it finds:
        Many products a step whose kernels take about as long as any kernel takes at least: cells of recurrent
        networks in a loop, one product for each gate, head or expert.

    Why it costs time:
        A kernel takes 2 to 5 us however little it does, and a small product fills a few multiprocessors of a hundred.
        Four products of one input, made one of four times the width, take hardly longer than one of them.

    How it is measured:
        Gemm kernels of at most 5 us (or twice the shortest kernels of the trace); with recorded shapes those of at
        most `max_kernel_ns` whose roofline is under twice the shortest time of a kernel. They are told if there are
        `min_kernels` of them a step and they are most of the step's products: a few small ones are in every model.
        Vector products do not count.
        With shapes the saving is bounded by their roofline; without, no saving is given.

    How to fix:
        Concatenate gates and activations: one product of [x, h] with the weights of all gates; nn.LSTM or nn.GRU over
        the whole sequence instead of cells in a loop; one bmm for heads and experts; a larger batch, wider layers;
        CUDA graphs for the launches.

    When it is wrong:
        In decoding one token at a time each product reads another weight: only a larger batch helps there.

    Needs:
        Kernels; ops to recognise cells, shapes to bound the saving.

    References:
        NVIDIA Deep Learning Performance, "Recurrent Layers User's Guide" and "Matrix Multiplication Background".
    """

    rule: ClassVar[str] = "PD206"
    name: ClassVar[str] = "small-matmuls"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share, min_kernels: of 43 recorded traces a small vision transformer comes nearest, with 49 such products in
    # 5 % of its step; steps of a hundred and more of them spend under 3 % there. Two layers of cells over a sequence of
    # 50 have more. min_of_products: so that they are the rule in this step, not the exception. max_kernel_ns: a grid
    # that leaves the GPU half empty runs up to 20 us (gpu/bounds.py).
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.05, "min_kernels": 100, "min_of_products": 0.5, "max_kernel_ns": 20_000}
    )
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-recurrent/",
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such products take at least `min_share` of the step."""
        products = matrix_rows(rank, "gemm") & ~rank.kernel_classes.match_rows(lambda k: k.gemv_like)
        rows = products & self._small(rank)
        count, whole = int(rows.sum()), int(products.sum())
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if rank.per_step(count) < self.settings["min_kernels"] or count < self.settings["min_of_products"] * whole:
            return
        if iv.total(time) < LEAST_TIME_NS or not self.exceeds_min_share(rank, cost):
            return
        op = top_op(rank, rows)
        cells = _cells(rank, rows)
        saved = _saved_share(rank, rows)
        median_ns = int(np.median(rank.trace.gpu.dur_ns[rows]))
        yield self.finding(
            rank,
            title=f"{rank.per_step(count):,} matrix products a {rank.unit_name} are too small for the GPU, half of "
            f"them shorter than {median_ns / 1e3:.1f} us",
            cost_ns=cost,
            saving=Saving() if saved is None else Saving(0, None, round(cost * saved), "bounded"),
            advice=_CELLS if cells else _OTHERS,
            fix="rnn = torch.nn.LSTM(size, hidden, layers)        # or nn.GRU: the whole sequence in one call"
            if cells
            else None,
            claim=Claim(time, kernels=True),
            confidence=0.7 if cells else 0.5,
            location=rank.locations.of_op(op) if op else None,
            evidence=(
                Evidence("share of the step's matrix products", round(100 * count / max(whole, 1), 1), "%"),
                Evidence("median kernel", median_ns, "ns"),
                Evidence("cells of recurrent networks", cells, "count"),
                Evidence("launched by", op),
                *top_kernels(rank, rows),
            ),
        )

    def _small(self, rank: Rank) -> BoolArray:
        """For each GPU item whether it is too short to be bound by anything but latency."""
        dur = rank.trace.gpu.dur_ns
        small: BoolArray = rank.bounds.match_rows("latency")
        roofline = _roofline_ns(rank)
        if roofline is None:
            return small
        with np.errstate(invalid="ignore"):
            little = roofline <= _NO_LONGER * SHORTEST_KERNEL_NS
        return np.where(np.isnan(roofline), small, little & (small | (dur <= self.settings["max_kernel_ns"])))


_CELLS = (
    "Use nn.LSTM or nn.GRU over the whole sequence instead of cells in a loop: cuDNN computes all gates at once, and "
    "the products of the inputs for all times. Own cells: one product of [x, h] for all gates."
)
_OTHERS = (
    "Make fewer, larger products: concatenate weights that share an input (gates, queries with keys and values), one "
    "bmm for heads and experts, a larger batch. CUDA graphs cheapen the launches."
)


def _cells(rank: Rank, rows: BoolArray) -> int:
    """How many cells of recurrent networks launched them, a step."""
    trace = rank.trace
    launched = distinct(trace.gpu.op[rows & (trace.gpu.op >= 0)])
    if not len(launched):
        return 0
    cells = trace.match_rows(trace.ops, _CELL)
    return rank.per_step(int((cells & iv.contains(rank.window, trace.ops.start_ns)).sum()))


def _roofline_ns(rank: Rank) -> FloatArray | None:
    """Time of each GPU item's maths and traffic at attainable rates, without latency; None for an unknown device."""
    device, costs, verdicts = rank.device, rank.kernel_costs, rank.verdicts
    bandwidth = device.attainable_bandwidth_bytes_per_s if device else None
    if device is None or not bandwidth:
        return None
    rates = np.array([device.attainable_flops(device.matrix_peak_type(t)) or np.nan for t in verdicts.operands])
    result: FloatArray = np.maximum(costs.flops / rates[verdicts.operand[costs.kind]], costs.bytes / bandwidth) * 1e9
    return result


def _saved_share(rank: Rank, rows: BoolArray) -> float | None:
    """Which share of the time could be saved at most; None unless the roofline of most of it is known."""
    roofline = _roofline_ns(rank)
    if roofline is None:
        return None
    dur, best = rank.trace.gpu.dur_ns[rows], roofline[rows]
    known = ~np.isnan(best)
    if 2 * dur[known].sum() < dur.sum():
        return None
    return float(np.maximum(dur[known] - best[known], 0).sum() / max(dur.sum(), 1))
