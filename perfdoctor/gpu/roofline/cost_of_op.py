"""FLOPs and compulsory bytes of an op call, from its recorded inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from perfdoctor.gpu.roofline.matrix_formulas import MATRIX_FORMULAS
from perfdoctor.gpu.roofline.memory_formulas import MEMORY_FORMULAS
from perfdoctor.gpu.roofline.op_cost import CostFormula, OpCost
from perfdoctor.gpu.roofline.recorded_inputs import RecordedInputs, UnusableInputsError
from perfdoctor.gpu.roofline.triton_formulas import find_triton_formula

FORMULAS: Mapping[str, CostFormula] = {**MEMORY_FORMULAS, **MATRIX_FORMULAS}
"""Every op that has a formula by its name; of all others only kernels of TorchInductor have a cost."""


def find_formula(name: str) -> CostFormula | None:
    """Return the formula of an op or of a generated kernel that was recorded as one; None where there is none."""
    return FORMULAS.get(name) or find_triton_formula(name)


@functools.lru_cache(maxsize=65536)
def cost_of_op(
    name: str, dims: str | None, types: str | None, strides: str | None = None, concrete: str | None = None
) -> OpCost | None:
    """Return what one call of an op costs at least.

    Args:
        name: Name as recorded, such as `aten::addmm`.
        dims: JSON text of `Input Dims`.
        types: JSON text of `Input type`.
        strides: JSON text of `Input Strides`; without it every tensor counts as dense.
        concrete: JSON text of `Concrete Inputs`; convolutions and attention need it.

    Returns:
        The cost; None for an op without a formula, and where sizes, types or scalars are missing, ragged, negative,
        symbolic, of the wrong number, or contradict each other.
    """
    formula = find_formula(name)
    if formula is None or dims is None or types is None:
        return None
    try:
        return formula(RecordedInputs.parse(dims, types, strides, concrete))
    except UnusableInputsError:
        return None
