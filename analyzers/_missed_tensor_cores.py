"""Kernels that run on CUDA cores though the device has Tensor Cores: which, why, what would help, and the finding.

What the rules about matrix products (PD201) and about convolutions (PD203) share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np

from perfdoctor.analysis.captured_facts import captured_part
from perfdoctor.gpu.devices import advise_precision
from perfdoctor.gpu.roofline.kernel_bounds import BANDWIDTH
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import (
    LEAST_TIME_NS,
    MatrixCategory,
    Remedy,
    exclude_small_products,
    matrix_rows,
    on_tensor_cores,
    saved_share,
)
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.rows import GpuRows

# What one kernel of a category computes, in words, and the captured flag that allows TF32 for it.
_CALLED: Mapping[MatrixCategory, str] = MappingProxyType({"gemm": "matrix product", "convolution": "convolution"})
_TF32_FLAG: Mapping[MatrixCategory, str] = MappingProxyType(
    {"gemm": "matmul_allow_tf32", "convolution": "cudnn_allow_tf32"}
)
_FLOAT64 = "These {}s are float64, usually by accident: PD204 tells what that costs in all."
# Groups of fewer channels than a Tensor Core tile has rows cannot fill it.
_FEW_CHANNELS = 8


class Missed(NamedTuple):
    """Kernels of one category and operand type with verdict "no" in the window.

    Their rows, their time, and their share of the time of that category.
    """

    rows: BoolArray
    time: Intervals
    operand: str | None
    share_of_category: float

    @property
    def total_ns(self) -> int:
        """Time in which at least one of them ran."""
        return iv.total(self.time)


class Cause(NamedTuple):
    """Why kernels run on CUDA cores, what helps, and how sure that is; `although` ends the title."""

    advice: str
    remedy: Remedy
    confidence: float
    fix: str | None = None
    although: str = ""


class TensorCoresMissed(RankAnalyzer):
    """A rule about kernels of one category; a subclass says why they miss the Tensor Cores, and what helps."""

    category: ClassVar[MatrixCategory]

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each operand type that takes at least `min_share` of the step."""
        for missed in missed_tensor_cores(rank, self.category):
            cost = rank.per_step(missed.total_ns)
            if self.exceeds_min_share(rank, cost):
                yield self._told(rank, missed, cost)

    @abstractmethod
    def cause(self, rank: Rank, missed: Missed) -> Cause:
        """Why these kernels miss the Tensor Cores; of float64 no remedy, and the advice is not told."""

    def _told(self, rank: Rank, missed: Missed, cost: int) -> Finding:
        called, op, cause = _CALLED[self.category], top_op(rank, missed.rows), self.cause(rank, missed)
        pointer = missed.operand == "fp64"  # PD204 tells of all float64 at once: nothing is promised twice
        saved = saved_share(rank, missed.rows, cause.remedy)
        finding = self.finding(
            rank,
            title=f"{missed.share_of_category:.0%} of the {called} time runs on CUDA cores"
            + (f" in {missed.operand}" if missed.operand else "")
            + cause.although,
            cost_ns=cost,
            saving=Saving() if pointer else Saving(0, None, round(cost * saved), "bounded"),
            advice=_FLOAT64.format(called.rpartition(" ")[2]) if pointer else cause.advice,
            fix=cause.fix,
            claim=Claim() if pointer else Claim(missed.time, kernels=True),
            confidence=cause.confidence,
            location=rank.locations.of_op(op) if op else None,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", cause.remedy.peak_ratio, "x"),
                *top_kernels(rank, missed.rows),
            ),
            subject=missed.operand or "",
            edit=None if pointer else scale_durations(GpuRows(rank.trace.gpu, missed.rows), saved),
        )
        return replace(finding, severity="info") if pointer else finding


def missed_tensor_cores(rank: Rank, category: MatrixCategory) -> tuple[Missed, ...]:
    """The kernels of a category that could use Tensor Cores and do not, by operand type, costliest first.

    Left out: types that take less than 10 us, gemv-like and depthwise kernels, products with a dimension of 16 or less,
    convolutions in groups of under 8 channels, what memory bounds by its recorded shapes, kernels as short as any,
    everything on a device without Tensor Cores or one of which it is not known whether it has any.
    """
    if rank.hardware.tensor_cores is not True:
        return ()
    gpu, verdicts = rank.trace.gpu, rank.verdicts
    of_category = matrix_rows(rank, category)
    whole_ns = max(int(gpu.dur_ns[of_category].sum()), 1)
    rows = (
        of_category & verdicts.match_rows("no") & ~rank.kernel_classes.match_rows(lambda k: k.gemv_like or k.depthwise)
    )
    rows &= ~_narrow_groups(rank) & ~_memory_bounds(rank) & ~rank.bounds.match_rows("latency")
    rows = exclude_small_products(rank, rows)
    operand = verdicts.operand[rank.kernel_costs.kind]
    found = []
    for code in occurring(operand[rows]).tolist():
        of_type = rows & (operand == code)
        time = rank.time_in_window(of_type)
        if iv.total(time) >= LEAST_TIME_NS:
            share = float(gpu.dur_ns[of_type].sum() / whole_ns)
            found.append(Missed(of_type, time, verdicts.operands[code] or None, share))
    return tuple(sorted(found, key=lambda missed: (-missed.total_ns, missed.operand or "")))


def _narrow_groups(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a convolution in groups of fewer than 8 channels, as depthwise ones are."""
    narrow = [
        (c.groups or 1) > 1 and (c.channels_in or _FEW_CHANNELS) < _FEW_CHANNELS for c in rank.kernel_costs.op_costs
    ]
    result: BoolArray = np.array([*narrow, False], bool)[rank.kernel_costs.op_cost]
    return result


def _memory_bounds(rank: Rank) -> BoolArray:
    """For each GPU item whether it is known that memory, not maths, limits it on the unit that it uses."""
    result: BoolArray = (rank.bounds.nearest_roof == BANDWIDTH) & ~np.isnan(rank.bounds.roofline_ns)
    return result


def tf32_allowed(rank: Rank, category: MatrixCategory) -> bool:
    """Whether float32 maths of a category may use TF32: as captured, else because some of it in the window does."""
    said = captured_part(rank.facts, "flags").get(_TF32_FLAG[category])
    if isinstance(said, bool):
        return said
    return bool((on_tensor_cores(rank, category) & rank.kernel_classes.match_rows(lambda k: k.operand == "tf32")).any())


def precision_remedy(rank: Rank) -> Remedy:
    """Which precision to choose for float32 maths, and what it would gain; nothing is named where none is known."""
    advice = advise_precision(rank.device, rank.hardware.capability, rank.hardware.vendor)
    if advice is None:
        return Remedy()
    halves = advice.precision != "tf32"
    rate = rank.device.attainable_flops(advice.precision.partition(" ")[0]) if rank.device else None
    return Remedy(advice.precision, advice.peak_ratio, rate, 0.5 if halves else 1.0)


def half_remedy(rank: Rank, operand: str) -> Remedy:
    """What half precision on CUDA cores would gain on Tensor Cores; kernels in float32 maths are the slowest there."""
    device = rank.device
    peak = device.matrix_peak_flops(operand) if device else None
    base = device.peak_flops("fp32") if device else None
    return Remedy(None, peak / base if peak and base else None, device.attainable_flops(operand) if device else None)
