"""The last word about Tensor Cores: what the names leave open is decided by achieved FLOP/s or by the operand type.

Names come first. An `unknown` that ran faster than CUDA cores can is proven to have used Tensor Cores; else a type for
which kernels of that kind always use them makes it likely; else it stays unknown. The same figures test the rules: a
kernel said to run on CUDA cores cannot beat them, and none can beat the Tensor Cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from perfdoctor.gpu import Device
from perfdoctor.gpu.roofline.kernel_bounds import PEAK_TOLERANCE
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array
from perfdoctor.trace.tables.distinct import distinct

if TYPE_CHECKING:
    from perfdoctor.analysis.kernels.kernel_costs import Items, Work
    from perfdoctor.rank import Rank


VERDICTS = ("yes", "no", "unknown", "na")
YES, NO, UNKNOWN, NA = range(len(VERDICTS))
BASES = ("name", "proven", "likely", "contradicted")
BY_NAME, PROVEN, LIKELY, CONTRADICTED = range(len(BASES))

MATRIX_CATEGORIES = frozenset({"gemm", "convolution", "attention"})
# Triton and libraries have no product of these types but on Tensor Cores, where the device has them.
_LIKELY_TYPES = frozenset({"fp16", "bf16", "fp8", "fp4", "int8"})
# Winograd and Fourier convolutions do with fewer multiplications than the direct count: they may exceed any peak.
_FEWER_PRODUCTS = ("winograd", "fft", "cgemm", "zgemm", "sp3asm")
_NO_TYPE = ""


class Violation(NamedTuple):
    """A launch that was faster than its unit allows: the rule that classified it, or the FLOPs given to it, are wrong.

    Attributes:
        rule: Id of the kernel rule that is suspect.
        kernel: Kernel name.
        achieved_flops_per_s: The fastest launch's rate.
        peak_flops_per_s: What the unit can do.
        unit: `CUDA cores` or `Tensor Cores`.
    """

    rule: str
    kernel: str
    achieved_flops_per_s: float
    peak_flops_per_s: float
    unit: str

    def __str__(self) -> str:
        blame = "the rule is suspect" if self.unit == "CUDA cores" else "its FLOPs are left out"
        return (
            f"kernel rule {self.rule} cannot be right about {self.kernel[:60]}: {self.achieved_flops_per_s / 1e12:.3g} "
            f"TFLOP/s is more than the {self.peak_flops_per_s / 1e12:.3g} of the {self.unit}; {blame}"
        )


class Verdicts(NamedTuple):
    """Whether each GPU item used Tensor Cores, three-valued to the end.

    Attributes:
        tensor_core: Index into VERDICTS for each GPU item; `na` for what is no kernel.
        basis: Index into BASES: said by the name, proven by achieved FLOP/s, likely by the operand type, or
            contradicted: the name says no and the FLOP/s say yes, so that the verdict is `unknown`.
        operand: For each row of `Work.items` the index into `operands` of its operand type.
        operands: The operand types; "" for none known.
        impossible: GPU items faster than the peak of any unit: their FLOPs must not be used.
        violations: What contradicts our rules, one a kernel name.
    """

    tensor_core: Int8Array
    basis: Int8Array
    operand: Int8Array
    operands: tuple[str, ...]
    impossible: BoolArray
    violations: tuple[Violation, ...]

    def is_(self, verdict: str, *bases: str) -> BoolArray:
        """For each GPU item whether its verdict is this one (on one of these bases, if any are given)."""
        result: BoolArray = self.tensor_core == VERDICTS.index(verdict)
        return result & np.isin(self.basis, [BASES.index(basis) for basis in bases]) if bases else result


def verdicts_of(run: Rank, work: Work) -> Verdicts:
    """The verdict of each GPU item of a rank."""
    items, item, dur = work.items, work.item, run.trace.gpu.dur_ns
    operand, operands = _operands(run, work)
    by_name = _by_name(run)[items.name]
    vector, matrix = (peak[operand] for peak in _peaks(run.device, operands))
    rated = work.kinds(*MATRIX_CATEGORIES) & ~_fewer_products(run)[items.name]
    flops = np.where(rated, items.flops, np.nan)
    fastest = PEAK_TOLERANCE * np.fmax(matrix, vector)
    verdict, basis = by_name.copy(), np.full(len(items), BY_NAME, np.int8)
    may = np.array([t in _LIKELY_TYPES for t in operands], bool)[operand] & (run.tensor_cores is True)
    likely = (by_name == UNKNOWN) & may
    verdict[likely], basis[likely] = YES, LIKELY
    impossible = np.zeros(len(item), bool)
    violations: tuple[Violation, ...] = ()
    # Few launches beat a unit that their name denies: all others are told by their item.
    limit_ns = flops / np.where(by_name == YES, fastest, np.fmin(vector, fastest)) * 1e9
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(dur < limit_ns[item] * work.share)
    achieved = flops[item[rows]] * work.share[rows] / np.maximum(dur[rows], 1) * 1e9
    impossible[rows] = achieved > fastest[item[rows]]
    proof = rows[~impossible[rows]]
    proven = (by_name == UNKNOWN) & _same_code(items, operand, item[proof])
    verdict[proven], basis[proven] = YES, PROVEN
    tensor_core, why = verdict[item], basis[item]
    contradicted = proof[by_name[item[proof]] == NO]
    tensor_core[contradicted], why[contradicted] = UNKNOWN, CONTRADICTED
    if len(rows):
        wrong = np.isin(rows, contradicted)
        beyond = impossible[rows]
        violations = (
            *_violations(run, rows[wrong], achieved[wrong], vector[item[rows[wrong]]], "CUDA cores"),
            *_violations(
                run, rows[beyond], achieved[beyond], np.fmax(matrix, vector)[item[rows[beyond]]], "Tensor Cores"
            ),
        )
    return Verdicts(tensor_core, why, operand, operands, impossible, violations)


def _operands(run: Rank, work: Work) -> tuple[Int8Array, tuple[str, ...]]:
    """The operand type of each item: what the kernel's name says, else what its op was given."""
    classes = run.kernel_classes
    given = [cost.dtype if cost.kind != "memory" else _NO_TYPE for cost in work.costs]
    operands = tuple(sorted({_NO_TYPE, *given, *(k.operand or _NO_TYPE for k in classes.values())}))
    number = {operand: i for i, operand in enumerate(operands)}
    named = np.full(len(run.trace.strings), number[_NO_TYPE], np.int8)
    for code, kernel in classes.items():
        named[code] = number[kernel.operand or _NO_TYPE]
    by_name = named[work.items.name]
    by_op = np.array([*(number[dtype] for dtype in given), number[_NO_TYPE]], np.int8)[work.items.cost]
    return np.where(by_name == number[_NO_TYPE], by_op, by_name), operands


def _by_name(run: Rank) -> Int8Array:
    """The verdict of each string that is a kernel's name; `na` for all others."""
    table = np.full(len(run.trace.strings), NA, np.int8)
    for code, kernel in run.kernel_classes.items():
        table[code] = VERDICTS.index(kernel.tensor_core)
    return table


def _fewer_products(run: Rank) -> BoolArray:
    table = np.zeros(len(run.trace.strings), bool)
    for code in run.kernel_classes:
        text = run.trace.strings[code].lower()
        table[code] = any(word in text for word in _FEWER_PRODUCTS)
    return table


def _peaks(device: Device | None, operands: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Peaks of vector and matrix units by operand type; NaN where unknown. Nothing is compared with measured rates."""
    vector, matrix = (np.full(len(operands), np.nan) for _ in range(2))
    if device is not None:
        for i, operand in enumerate(operands):
            vector[i] = device.vector_peak_flops(operand) or np.nan if operand else np.nan
            matrix[i] = device.matrix_peak_flops(operand) or np.nan if operand else np.nan
    return vector, matrix


def _same_code(items: Items, operand: Int8Array, proof: npt.NDArray[np.int64]) -> BoolArray:
    """Items of a kernel name and operand type of which at least one launch is proven: they run the same code."""
    key = items.name.astype(np.int64) * 128 + operand
    result: BoolArray = np.isin(key, distinct(key[proof]))
    return result


def _violations(
    run: Rank, rows: npt.NDArray[np.int64], achieved: FloatArray, peak: FloatArray, unit: str
) -> tuple[Violation, ...]:
    """One a kernel name, by its fastest launch."""
    found: dict[int, Violation] = {}
    for i in np.argsort(-achieved, kind="stable").tolist():
        code = int(run.trace.gpu.name[rows[i]])
        if code not in found:
            rule = run.kernel_classes[code].rule
            found[code] = Violation(rule, run.trace.strings[code], float(achieved[i]), float(peak[i]), unit)
    return tuple(found.values())
