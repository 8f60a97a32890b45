"""Kernels of matrix products and convolutions: the rules PD201 to PD206 share it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from perfdoctor.analysis.launching_ops import launching_op_names
from perfdoctor.analysis.queries import GpuQuery
from perfdoctor.rank import Rank

MatrixCategory: TypeAlias = Literal["gemm", "convolution"]

_CONVOLUTION_OP = r"(?i)conv(olution|_|\d)"


def find_matrix_kernels(rank: Rank, category: MatrixCategory) -> GpuQuery:
    """The kernels of the window that do the maths of matrix products, or of convolutions.

    Libraries compute convolutions by gemm kernels, too: a gemm kernel that a convolution op launched belongs to the
    convolutions. Helpers (split-K tails, layout copies) belong to neither.
    """
    trace = rank.trace
    is_convolution = np.append(trace.match_strings(trace.ops, _CONVOLUTION_OP), False)  # the last is for no op
    in_convolution = is_convolution[launching_op_names(trace)]
    maths = rank.kernels.where(rank.in_window & ~rank.verdicts.match_rows("na"))
    gemms = maths.of_category("gemm")
    if category == "gemm":
        return gemms.where(~in_convolution)
    return maths.of_category("convolution") | gemms.where(in_convolution)


def find_tensor_core_kernels(rank: Rank, category: MatrixCategory) -> GpuQuery:
    """Those of `find_matrix_kernels` that use Tensor Cores."""
    return find_matrix_kernels(rank, category).where(rank.verdicts.match_rows("yes"))
