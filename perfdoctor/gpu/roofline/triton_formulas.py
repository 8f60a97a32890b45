"""Bytes and FLOPs of kernels that TorchInductor generated, by the arguments that the profiler recorded for them.

Newer versions of PyTorch record a generated kernel as an op of its name, with every tensor that it was given, outputs
included, and its numbers of elements as the last scalars. A pointwise kernel or a reduction moves each tensor at least
once, so its bytes follow; what it calculates is not recorded. A template (`triton_tem_`) that got the two factors of a
product and a place for the result has the FLOPs of that product.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from perfdoctor.gpu.roofline.op_cost import CostFormula, OpCost
from perfdoctor.gpu.roofline.recorded_inputs import FLOAT_TYPES, RecordedInputs, TensorInput, require_consistent

# A kernel that reads through indices touches a part of its tensors that is not recorded.
_INDIRECT = re.compile(r"index|embedding|gather|scatter|sort|searchsorted|_slice|_cat|constant_pad|upsample|grid_sampl")
_PRODUCT = re.compile(r"^triton_tem_fused_\w{0,40}(?:mm|bmm)(?:_|\Z)")
_LARGEST_COUNT = 1 << 48


def find_triton_formula(name: str) -> CostFormula | None:
    """Return the formula of a generated kernel by its name; None where its arguments do not determine a cost."""
    kind = name[len("triton_") :].split("_", 1)[0] if name.startswith("triton_") else ""
    if kind == "tem":
        return _template if _PRODUCT.search(name) and "_scaled" not in name and "grouped" not in name else None
    return None if _INDIRECT.search(name) else _FORMULAS.get(kind)


def _tensors(inputs: RecordedInputs) -> list[TensorInput]:
    """Return the tensors among the arguments; a scalar has the type "Scalar" or none."""
    found = [inputs.optional_tensor(i) for i in range(len(inputs.sizes))]
    return [tensor for tensor in found if tensor is not None]


def _counts(inputs: RecordedInputs) -> list[int]:
    """Return the last two scalar arguments, the last one first: the numbers of elements, of rows and columns."""
    require_consistent(inputs.concrete is not None)
    scalars: list[int] = []
    for i in range(len(inputs.sizes) - 1, -1, -1):
        if inputs.types[i] != "Scalar" or len(scalars) == 2:
            break
        scalars.append(inputs.int_value(i))
    require_consistent(bool(scalars) and all(0 < count <= _LARGEST_COUNT for count in scalars))
    return scalars


def _moved(tensors: list[TensorInput], elements: int) -> OpCost:
    """The cost of a kernel by the number of elements that it visits: it moves no more of a tensor than that."""
    require_consistent(bool(tensors))
    total_bytes = sum(min(tensor.bytes, elements * tensor.item_bytes) for tensor in tensors)
    largest = max(tensors, key=lambda tensor: tensor.numel)
    return OpCost("memory", elements, total_bytes, largest.dtype)


def _pointwise(inputs: RecordedInputs) -> OpCost:
    """Return the cost of a pointwise kernel: over xnumel elements, or over ynumel times xnumel.

    A scalar before the last one may be another argument: it counts as a number of elements only where a tensor has as
    many as both together.
    """
    tensors, counts = _tensors(inputs), _counts(inputs)
    both = math.prod(counts)
    is_grid = any(tensor.numel == both for tensor in tensors)
    return _moved(tensors, both if is_grid else counts[0])


def _reduction(inputs: RecordedInputs) -> OpCost:
    """Return the cost of a reduction: over xnumel rows of rnumel elements. It may read its input more than once."""
    tensors, counts = _tensors(inputs), _counts(inputs)
    require_consistent(len(counts) == 2)
    return _moved(tensors, math.prod(counts))


def _template(inputs: RecordedInputs) -> OpCost:
    """Return the cost of a product whose two factors are the only matrices beside its result, which comes last."""
    tensors = _tensors(inputs)
    matrices = [tensor for tensor in tensors if len(tensor.sizes) in (2, 3)]
    require_consistent(len(matrices) == 3)
    left, right, out = matrices
    require_consistent(len(left.sizes) == len(right.sizes) == len(out.sizes))
    (m, k), (k_of_right, n) = left.sizes[-2:], right.sizes[-2:]
    require_consistent(k == k_of_right and out.sizes[-2:] == (m, n))
    require_consistent(left.sizes[:-2] == right.sizes[:-2] == out.sizes[:-2])
    require_consistent(left.dtype == right.dtype and left.dtype in FLOAT_TYPES)
    batch = math.prod(left.sizes[:-2])
    total_bytes = sum(tensor.bytes for tensor in tensors)
    return OpCost("gemm", 2 * batch * m * n * k, total_bytes, left.dtype, m, n, k, batch)


_FORMULAS: Mapping[str, CostFormula] = {"poi": _pointwise, "red": _reduction, "per": _reduction}
