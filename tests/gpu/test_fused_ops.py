"""Names of generated kernels, taken apart."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from perfdoctor.gpu.fused_ops import fused_ops, is_triton_kernel, kind_of_triton_kernel


@pytest.mark.parametrize(
    ("name", "ops", "kind"),
    [
        ("triton_poi_fused_add_relu_0", ("add", "relu"), "pointwise"),
        ("triton_poi_fused_relu", ("relu",), "pointwise"),
        ("triton_red_fused__to_copy_add_native_layer_norm_3", ("_to_copy", "add", "native_layer_norm"), "reduction"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", ("_unsafe_view", "mul", "silu"), "pointwise"),
        ("triton_red_fused_add_native_layer_norm_9_0d1d2d3d4d5d6de7de", ("add", "native_layer_norm"), "reduction"),
        ("triton_per_fused_native_layer_norm_backward_4", ("native_layer_norm_backward",), "reduction"),
        ("triton_tem_fused_addmm_12", ("addmm",), "template"),
        ("triton_for_fused_1", (), "foreach"),
        ("triton__0d1d2de", (), "unnamed"),
        ("_fwd_kernel_aligned_0d1d2d3d", (), "written by hand"),
    ],
)
def test_a_name_tells_the_ops(name: str, ops: tuple[str, ...], kind: str) -> None:
    assert (fused_ops(name), kind_of_triton_kernel(name)) == (ops, kind)
    assert is_triton_kernel(name)


def test_ops_of_the_trace_count_as_names() -> None:
    assert fused_ops("triton_poi_fused_add_my_op_0") == ("add", "my", "op")
    assert fused_ops("triton_poi_fused_add_my_op_0", frozenset({"my_op"})) == ("add", "my_op")


@pytest.mark.parametrize("name", ["ampere_sgemm_128x64_tn", "ncclDevKernel_AllReduce", "void f<4>(int)", ""])
def test_other_kernels_are_not_of_triton(name: str) -> None:
    assert not is_triton_kernel(name)
    assert fused_ops(name) == ()


@pytest.mark.corpus
def test_real_names_are_used_up(shared: Path) -> None:
    """What is left of a name after its ops are taken out is nothing."""
    with (shared / "kernels" / "labelled_kernels.csv").open() as file:
        names = [next(iter(row.values())) for row in csv.DictReader(file)]
    fused = {name: fused_ops(name) for name in names if re.match(r"triton_\w+_fused_[a-z_]", name)}
    assert len(fused) > 20
    for name, ops in fused.items():
        assert ops
        assert all(op in name for op in ops)
        assert not any(op in ("_", "", "to", "native", "layer", "norm", "backward") for op in ops), (name, ops)
