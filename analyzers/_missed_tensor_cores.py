"""Kernels that run on CUDA cores though the device has Tensor Cores: which, why, what would help, and the finding.

The rules about matrix products (PD201) and about convolutions (PD203) share it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from perfdoctor.analyzers._kernel_ranges import DurationRange, apply_remedy
from perfdoctor.analyzers._matrix_remedies import MIN_TIME_NS, Remedy, exclude_small_products, find_helpers
from perfdoctor.rules import (
    BANDWIDTH,
    Advice,
    BoolArray,
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Intervals,
    MatrixCategory,
    Rank,
    RankAnalyzer,
    Saving,
    find_matrix_kernels,
    find_tensor_core_kernels,
    frozen_dataclass,
    occurring,
    top_kernels,
    top_op,
)
from perfdoctor.rules import intervals as iv

# What one kernel of a category computes, in words, and the captured flag that allows TF32 for it.
_OPERATION_NAMES: Mapping[MatrixCategory, str] = {"gemm": "matrix product", "convolution": "convolution"}
_FLOAT64_ADVICE = "Make these {}s float32: they are float64, usually by accident (PD204 says what that costs in all)."
# Channels a group: a Tensor Core tile has 8 rows (mma.m16n8k16), which fewer channels cannot fill.
_MIN_GROUP_CHANNELS = 8


@frozen_dataclass(eq=False)
class MissedKernels:
    """Kernels of one category and operand type in the window that run on CUDA cores (verdict "no").

    Attributes:
        kernels: The kernels.
        helpers: What their ops launched besides them: transforms, copies into other layouts, partial sums.
        time: When any of them or of the helpers ran.
        operand: Their operand type, such as "fp32"; None where it is unknown.
        category_share: Their share (0 to 1) of the kernel time of the category.
    """

    kernels: GpuQuery
    helpers: GpuQuery
    time: Intervals
    operand: str | None
    category_share: float

    @property
    def total_ns(self) -> int:
        """Time in which at least one of them or of the helpers ran."""
        return iv.total(self.time)


class Cause(NamedTuple):
    """Why kernels run on CUDA cores, what helps, and how sure that is; `title_end` ends the finding's title.

    `better` is a remedy that asks for more than `remedy` does, and gives more: half precision in place of TF32.
    """

    advice: Advice
    remedy: Remedy
    confidence: float
    title_end: str = ""
    better: Remedy | None = None


class MissedTensorCores(RankAnalyzer):
    """A rule about kernels of one category; a subclass says why they miss the Tensor Cores, and what helps."""

    category: ClassVar[MatrixCategory]

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding for each operand type that takes at least `min_share` of the step."""
        for missed in find_missed_kernels(rank, self.category):
            cost_ns = rank.per_step(missed.total_ns)
            if self.exceeds_min_share(rank, cost_ns):
                yield self._make_finding(rank, missed, cost_ns)

    @abstractmethod
    def find_cause(self, rank: Rank, missed: MissedKernels) -> Cause:
        """Why these kernels miss the Tensor Cores; for float64 there is no remedy, and the advice is not used."""

    def find_durations(self, rank: Rank, missed: MissedKernels, cause: Cause) -> DurationRange:
        """How long the kernels take by the remedy; at best by the better one where there are two."""
        after = apply_remedy(rank, missed.kernels, self.category, cause.remedy)
        if cause.better is None:
            return after
        return after.at_best(apply_remedy(rank, missed.kernels, self.category, cause.better))

    def _make_finding(self, rank: Rank, missed: MissedKernels, cost_ns: int) -> Finding:
        operation, cause, rows = _OPERATION_NAMES[self.category], self.find_cause(rank, missed), missed.kernels.mask
        helpers_ns = rank.trace.gpu.dur_ns[missed.helpers.mask].astype(np.float64)
        # PD204 reports all float64 at once. Here it is information: nothing is promised twice.
        is_float64 = missed.operand == "fp64"
        op, after = top_op(rank, rows), self.find_durations(rank, missed, cause).with_helpers(helpers_ns)
        helpers = [Evidence("transforms and copies by the same ops", rank.per_step(int(helpers_ns.sum())), "ns")]
        units = "vector units" if rank.hardware.vendor == "amd" else "CUDA cores"
        finding = self.finding(
            rank,
            title=f"{missed.category_share:.0%} of the {operation} time is spent on {units}"
            + (f" in {missed.operand}" if missed.operand else "")
            + cause.title_end,
            cost_ns=cost_ns,
            saving=Saving() if is_float64 else after.saving(cost_ns),
            advice=cause.advice._replace(sentence=_FLOAT64_ADVICE.format(operation.rpartition(" ")[2]))
            if is_float64
            else cause.advice,
            claim=Claim() if is_float64 else Claim(missed.time, kernels=True),
            confidence=cause.confidence,
            location=missed.kernels.location,
            evidence=(
                Evidence("launched by", op),
                Evidence("peak of the remedy over the present peak", cause.remedy.peak_ratio, "x"),
                *(helpers if len(helpers_ns) else ()),
                *top_kernels(rank, rows),
            ),
            subject=missed.operand or "",
            edit=None if is_float64 else after.edit(missed.kernels.rows + missed.helpers.rows),
        )
        return replace(finding, severity="info") if is_float64 else finding


def find_missed_kernels(rank: Rank, category: MatrixCategory) -> tuple[MissedKernels, ...]:
    """The kernels of a category that could use Tensor Cores and do not, by operand type, costliest first.

    Left out: types that take less than 10 us, gemv-like and depthwise kernels, products with a dimension of 16 or less,
    convolutions in groups of under 8 channels, kernels that memory bounds by their recorded shapes, kernels bound by
    latency, and everything on a device without Tensor Cores or of which it is unknown whether it has any.
    """
    if rank.hardware.tensor_cores is not True:
        return ()
    dur_ns, verdicts = rank.trace.gpu.dur_ns, rank.verdicts
    in_category = find_matrix_kernels(rank, category)
    category_ns = max(int(dur_ns[in_category.mask].sum()), 1)
    on_cuda_cores = in_category.where(verdicts.match_rows("no")).of_class(lambda k: not (k.gemv_like or k.depthwise))
    gain_nothing = (
        _match_narrow_groups(rank)
        | ((rank.bounds.nearest_roof == BANDWIDTH) & ~np.isnan(rank.bounds.roofline_ns))
        | rank.bounds.match_rows("latency")
    )
    kernels = exclude_small_products(rank, on_cuda_cores.where(~gain_nothing))
    operand = verdicts.operand[rank.kernel_costs.kind]
    found = []
    for code in occurring(operand[kernels.mask]).tolist():
        of_type = kernels.where(operand == code)
        share = float(dur_ns[of_type.mask].sum() / category_ns)
        helpers = find_helpers(rank, of_type)
        missed = MissedKernels(of_type, helpers, (of_type | helpers).time, verdicts.operands[code] or None, share)
        if missed.total_ns >= MIN_TIME_NS:
            found.append(missed)
    return tuple(sorted(found, key=lambda missed: (-missed.total_ns, missed.operand or "")))


def _match_narrow_groups(rank: Rank) -> BoolArray:
    """For each GPU item whether it is a convolution in groups of fewer than 8 channels, as depthwise ones are."""
    costs = rank.kernel_costs
    result: BoolArray = costs.match_op_costs(
        lambda c: (c.groups or 1) > 1 and (c.channels_in or _MIN_GROUP_CHANNELS) < _MIN_GROUP_CHANNELS
    )[costs.op_cost]
    return result


def is_tf32_allowed(rank: Rank, category: MatrixCategory) -> bool:
    """Whether float32 maths of a category may use TF32: by the captured flag, else by whether kernels use it."""
    flags = rank.facts.flags
    flag = flags.matmul_allow_tf32 if category == "gemm" else flags.cudnn_allow_tf32
    if flag is not None:
        return flag
    if category == "gemm" and flags.float32_matmul_precision in ("high", "medium"):
        return True
    return len(find_tensor_core_kernels(rank, category).of_class(lambda k: k.operand == "tf32")) > 0


def find_float32_remedy(rank: Rank) -> Remedy:
    """The precision to choose for float32 maths on this device, and its rates; an empty Remedy where none is known."""
    advice = rank.hardware.precision_advice
    if advice is None:
        return Remedy()
    peak_type = advice.precision.partition(" ")[0]
    return Remedy(advice.precision, advice.peak_ratio, 1.0 if advice.precision == "tf32" else 0.5, peak_type)


def find_half_of_tf32(rank: Rank, remedy: Remedy) -> Remedy | None:
    """Autocast to bfloat16 as the better remedy where TF32 is the first; None where it is not, or rates are unknown."""
    device = rank.device
    peak, base = (device.peak_flops(t) if device else None for t in ("bf16", "fp32"))
    if remedy.name != "tf32" or device is None or not peak or not base:
        return None
    return Remedy("bf16 autocast", peak / base, 0.5, "bf16")


def find_half_type(rank: Rank) -> str | None:
    """The half precision type for which the device has Tensor Cores, as torch names it; None where it has none."""
    names = (("bf16", "bfloat16"), ("fp16", "float16"))
    return next((name for dtype, name in names if rank.device and rank.device.matrix_peak_flops(dtype)), None)


def find_half_remedy(rank: Rank, operand: str) -> Remedy:
    """Tensor Cores for half precision on CUDA cores, whose peak is taken as that of float32, the lowest there."""
    device = rank.device
    peak = device.matrix_peak_flops(operand) if device else None
    base = device.peak_flops("fp32") if device else None
    return Remedy(None, peak / base if peak and base else None, peak_type=operand)
