"""Whether each kernel used Tensor Cores: by its name, else by its achieved FLOP/s or operand type.

A name may leave the verdict `unknown`. Such a kernel is proven to have used Tensor Cores if it was faster than CUDA
cores can be, and it is likely to have used them if its operand type is one for which such kernels always do. The same
figures test the kernel rules: no kernel that is classified for CUDA cores can be faster than they are, and none can be
faster than the Tensor Cores.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfdoctor.analysis.kernels.hardware import Hardware
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.kernels.kernel_costs import CostKinds, KernelCosts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device
from perfdoctor.gpu.gemm_alignment import misaligned_dimensions
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.gpu.roofline.kernel_bounds import PEAK_TOLERANCE
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int8Array, Int64Array
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.model import KERNEL

VERDICTS = ("yes", "no", "unknown", "na")
YES, NO, UNKNOWN, NA = range(len(VERDICTS))
BASES = ("name", "proven", "likely", "contradicted")
BY_NAME, PROVEN, LIKELY, CONTRADICTED = range(len(BASES))

# Triton and libraries compute products of these types only on Tensor Cores, where the device has them.
_LIKELY_TYPES = frozenset({"fp16", "bf16", "fp8", "fp4", "int8"})
# Winograd and Fourier convolutions need fewer multiplications than the direct count: they may exceed any peak.
_FEWER_PRODUCTS = ("winograd", "fft", "cgemm", "zgemm", "sp3asm")
_NO_TYPE = ""


class Violation(NamedTuple):
    """A launch that was faster than its unit can be: the rule that classified it is wrong, or its FLOPs are.

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


@frozen_dataclass(eq=False)
class TensorCoreVerdicts:
    """Whether each GPU item used Tensor Cores, three-valued to the end.

    Attributes:
        tensor_core: Index into VERDICTS for each GPU item; `na` for what is no kernel.
        basis: Index into BASES for each GPU item: the name, proven by achieved FLOP/s, likely by the operand type, or
            contradicted (the name says no and the FLOP/s say yes, so that the verdict is `unknown`).
        operand: For each row of `KernelCosts.kinds` the index into `operands` of its operand type.
        operands: The operand types; "" for none known.
        slow_path: For each GPU item whether it used them with narrow memory accesses, see `KernelClass.slow_path`. The
            names of AMD's kernels do not tell that (they load 4 or 8 bytes for aligned products too): there a matrix
            whose rows do not start at multiples of 16 bytes, by its recorded shape, is the sign.
        impossible: For each GPU item whether it was faster than the peak of any unit: its FLOPs must not be used.
        violations: Launches that contradict the kernel rules, one a kernel name.
    """

    tensor_core: Int8Array
    basis: Int8Array
    operand: Int8Array
    operands: tuple[str, ...]
    slow_path: BoolArray
    impossible: BoolArray
    violations: tuple[Violation, ...]

    def match_rows(self, verdict: str, *bases: str) -> BoolArray:
        """For each GPU item whether its verdict is this one (on one of these bases, if any are given)."""
        result: BoolArray = self.tensor_core == VERDICTS.index(verdict)
        return result & np.isin(self.basis, [BASES.index(basis) for basis in bases]) if bases else result


def verdicts_of(classes: KernelClasses, costs: KernelCosts, hardware: Hardware) -> TensorCoreVerdicts:
    """The verdict of each GPU item of a trace.

    The peaks of the device prove or contradict a verdict.
    """
    kinds, kind, dur_ns = costs.kinds, costs.kind, classes.trace.gpu.dur_ns
    operand, operands = _operand_types(classes, costs)
    by_name = _verdicts_by_name(classes)[kinds.name]
    vector, matrix = (peak[operand] for peak in _peaks(hardware.device, operands))
    flops = np.where(costs.match_kinds(*MATRIX_CATEGORIES), kinds.flops, np.nan)
    fewer_products = _ops_with_fewer_products(classes)
    fastest = PEAK_TOLERANCE * np.fmax(matrix, vector)
    verdict, basis = by_name.copy(), np.full(len(kinds), BY_NAME, np.int8)
    likely_type = np.array([t in _LIKELY_TYPES for t in operands], bool)[operand] & (hardware.tensor_cores is True)
    likely = (by_name == UNKNOWN) & likely_type
    verdict[likely], basis[likely] = YES, LIKELY
    impossible = np.zeros(len(kind), bool)
    # Few launches are faster than the unit of their name: all others have the verdict of their kind.
    limit_ns = flops / np.where(by_name == YES, fastest, np.fmin(vector, fastest)) * 1e9
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(dur_ns < limit_ns[kind] * costs.cost_fraction)
    rows = rows[~fewer_products[classes.trace.gpu.op[rows]]]
    achieved = flops[kind[rows]] * costs.cost_fraction[rows] / np.maximum(dur_ns[rows], 1) * 1e9
    impossible[rows] = achieved > fastest[kind[rows]]
    needs_all = ~_match_products_in_convolutions(classes, costs)[kind[rows]]
    proof = rows[~impossible[rows] & needs_all]
    proven = (by_name == UNKNOWN) & _runs_same_code(kinds, operand, kind[proof])
    verdict[proven], basis[proven] = YES, PROVEN
    tensor_core, basis_of_item = verdict[kind], basis[kind]
    contradicted = proof[by_name[kind[proof]] == NO]
    tensor_core[contradicted], basis_of_item[contradicted] = UNKNOWN, CONTRADICTED
    violations: tuple[Violation, ...] = ()
    if len(rows):
        wrong = np.isin(rows, contradicted)
        beyond = impossible[rows] & needs_all
        best = np.fmax(matrix, vector)
        violations = (
            *_violations(classes, rows[wrong], achieved[wrong], vector[kind[rows[wrong]]], "CUDA cores"),
            *_violations(classes, rows[beyond], achieved[beyond], best[kind[rows[beyond]]], "Tensor Cores"),
        )
    slow_path = _match_slow_path(classes, costs, hardware) & (tensor_core == YES)
    return TensorCoreVerdicts(tensor_core, basis_of_item, operand, operands, slow_path, impossible, violations)


def _match_slow_path(classes: KernelClasses, costs: KernelCosts, hardware: Hardware) -> BoolArray:
    """For each GPU item whether it is a kernel with narrow memory accesses, by its name or, on AMD, by its shapes."""
    slow = classes.match_rows(lambda k: k.slow_path)
    if hardware.vendor != "amd":
        return slow
    kinds, strings = costs.kinds, classes.trace.strings
    untagged = classes.match_names(lambda k: k.category == "gemm" and k.alignment is None)[kinds.name]
    misaligned = np.zeros(len(kinds), bool)
    for row in np.flatnonzero(untagged & (kinds.op_cost >= 0)).tolist():
        cost = costs.op_costs[int(kinds.op_cost[row])]
        misaligned[row] = bool(misaligned_dimensions(cost, strings[int(kinds.name[row])]))
    return slow | misaligned[costs.kind]


def _operand_types(classes: KernelClasses, costs: KernelCosts) -> tuple[Int8Array, tuple[str, ...]]:
    """The operand type of each kind of item: what the kernel's name says, else the type of its op's inputs."""
    of_ops = [cost.dtype if cost.kind != "memory" else _NO_TYPE for cost in costs.op_costs]
    of_names = {name: kernel.operand or _NO_TYPE for name, kernel in classes.by_name.items()}
    operands = tuple(sorted({_NO_TYPE, *of_ops, *of_names.values()}))
    number = {operand: i for i, operand in enumerate(operands)}
    name_table = np.full(len(classes.trace.strings), number[_NO_TYPE], np.int8)
    for name, operand in of_names.items():
        name_table[name] = number[operand]
    by_name = name_table[costs.kinds.name]
    by_op = np.array([*(number[operand] for operand in of_ops), number[_NO_TYPE]], np.int8)[costs.kinds.op_cost]
    return np.where(by_name == number[_NO_TYPE], by_op, by_name), operands


def _verdicts_by_name(classes: KernelClasses) -> Int8Array:
    """The verdict of each string that is a kernel's name; `na` for all others."""
    table = np.full(len(classes.trace.strings), NA, np.int8)
    for name, kernel in classes.by_name.items():
        table[name] = VERDICTS.index(kernel.tensor_core)
    return table


def _ops_with_fewer_products(classes: KernelClasses) -> BoolArray:
    """For each op whether it needs fewer multiplications than the direct count; a last False, which index -1 finds.

    Any of its kernels says so: the products between the transforms of a Winograd convolution are an ordinary gemm.
    """
    strings, gpu = classes.trace.strings, classes.trace.gpu
    named = np.zeros(len(strings), bool)
    for name in classes.by_name:
        text = strings[name].lower()
        named[name] = any(word in text for word in _FEWER_PRODUCTS)
    ops = np.zeros(len(classes.trace.ops) + 1, bool)
    ops[gpu.op[named[gpu.name] & (gpu.kind == KERNEL)]] = True
    ops[-1] = False
    return ops


def _match_products_in_convolutions(classes: KernelClasses, costs: KernelCosts) -> BoolArray:
    """For each kind of item whether it is a product that a convolution launched.

    A library may have transformed its input by kernels that the file lacks, or whose names we do not know. The
    direct count is then too high, so no rate that follows from it proves anything about the kernel.
    """
    of_convolution = np.array([*(cost.kind == "convolution" for cost in costs.op_costs), False], bool)
    is_product = classes.match_names(lambda kernel: kernel.category == "gemm")
    result: BoolArray = is_product[costs.kinds.name] & of_convolution[costs.kinds.op_cost]
    return result


def _peaks(device: Device | None, operands: tuple[str, ...]) -> tuple[FloatArray, FloatArray]:
    """Theoretical peaks of vector and matrix units by operand type; NaN where unknown. Not the calibrated rates."""
    vector, matrix = (np.full(len(operands), np.nan) for _ in range(2))
    if device is not None:
        for i, operand in enumerate(operands):
            vector[i] = device.vector_peak_flops(operand) or np.nan if operand else np.nan
            matrix[i] = device.matrix_peak_flops(operand) or np.nan if operand else np.nan
    return vector, matrix


def _runs_same_code(kinds: CostKinds, operand: Int8Array, proven_kinds: Int64Array) -> BoolArray:
    """Kinds with the kernel name and operand type of a proven one: they run the same code."""
    key = kinds.name.astype(np.int64) * 128 + operand
    result: BoolArray = np.isin(key, distinct(key[proven_kinds]))
    return result


def _violations(
    classes: KernelClasses, rows: Int64Array, achieved: FloatArray, peak: FloatArray, unit: str
) -> tuple[Violation, ...]:
    """The violations of some launches, one for each kernel name, by its fastest launch."""
    trace = classes.trace
    found: dict[int, Violation] = {}
    for i in np.argsort(-achieved, kind="stable").tolist():
        name = int(trace.gpu.name[rows[i]])
        if name not in found:
            rule = classes.by_name[name].rule
            found[name] = Violation(rule, trace.strings[name], float(achieved[i]), float(peak[i]), unit)
    return tuple(found.values())
