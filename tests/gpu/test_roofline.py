"""FLOPs and bytes of ops: right against PyTorch's own counter, or none at all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu.roofline.cost_of_op import FORMULAS, cost_of_op
from perfdoctor.gpu.roofline.op_cost import OpCost

BF16, FP32 = "c10::BFloat16", "float"
SCALAR, LIST, NOTHING = "Scalar", "ScalarList", ""


def cost(
    name: str, sizes: list[object], types: list[str], concrete: list[str] | None = None, strides: object = None
) -> OpCost | None:
    texts = [None if part is None else json.dumps(part) for part in (sizes, types, strides, concrete)]
    return cost_of_op(name, *texts)


def conv_types(dtype: str = BF16) -> list[str]:
    return [dtype, dtype, NOTHING, LIST, LIST, LIST, SCALAR, LIST, SCALAR]


# Exact figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes", "types", "flops", "total_bytes", "mnkb"),
    [
        ("aten::mm", [[4, 8], [8, 16]], [BF16, BF16], 1024, 2 * (32 + 128 + 64), (4, 16, 8, 1)),
        (
            "aten::addmm",
            [[16], [4, 8], [8, 16], [], []],
            [FP32, FP32, FP32, SCALAR, SCALAR],
            1024,
            4 * (16 + 32 + 128 + 64),
            (4, 16, 8, 1),
        ),
        ("aten::bmm", [[3, 4, 8], [3, 8, 16]], [FP32, FP32], 3072, 3 * 4 * 224, (4, 16, 8, 3)),
        ("aten::baddbmm", [[1], [3, 4, 8], [3, 8, 16]], [FP32] * 3, 3072, 3 * 4 * 224 + 4, (4, 16, 8, 3)),
        ("aten::mv", [[4, 8], [8]], [FP32, FP32], 64, 4 * (32 + 8 + 4), (4, 1, 8, 1)),
        ("aten::linear", [[2, 4, 8], [16, 8], [16]], [FP32] * 3, 2048, 4 * (64 + 128 + 128 + 16), (8, 16, 8, 1)),
        ("aten::_int_mm", [[32, 8], [8, 16]], ["signed char"] * 2, 8192, 256 + 128 + 4 * 512, (32, 16, 8, 1)),
    ],
)
def test_products_count_two_a_multiply_add(
    name: str, sizes: list[object], types: list[str], flops: int, total_bytes: int, mnkb: tuple[int, ...]
) -> None:
    op_cost = cost(name, sizes, types)

    assert op_cost is not None
    assert (op_cost.flops, op_cost.bytes, (op_cost.m, op_cost.n, op_cost.k, op_cost.batch)) == (
        flops,
        total_bytes,
        mnkb,
    )


def test_scaled_product_writes_the_type_that_it_was_asked_for() -> None:
    sizes: list[object] = [[16, 32], [32, 16], [], [], [], [], [], []]
    types = ["c10::Float8_e4m3fn"] * 2 + [FP32, FP32, NOTHING, NOTHING, SCALAR, SCALAR]
    to_float = cost("aten::_scaled_mm", sizes, types, ["", "", "", "", "", "", "6", "False"])
    to_half = cost("aten::_scaled_mm", sizes, types, ["", "", "", "", "", "", "15", "False"])

    assert to_float is not None
    assert to_half is not None
    assert to_float.dtype == "fp8"
    assert to_float.bytes - to_half.bytes == 2 * 256


FP8 = "c10::Float8_e4m3fn"


@pytest.mark.parametrize(
    ("left", "right", "flops", "out_numel"),
    [
        ([96, 8], [3, 8, 16], 2 * 96 * 8 * 16, 96 * 16),  # rows of tokens, packed by expert
        ([3, 96, 8], [8, 48], 2 * 96 * 8 * 48, 96 * 48),  # columns packed
        ([96, 24], [24, 16], 2 * 96 * 24 * 16, 3 * 96 * 16),  # gradient of the weights: the inner dimension packed
        ([3, 96, 8], [3, 8, 16], 3 * 2 * 96 * 8 * 16, 3 * 96 * 16),  # nothing packed
    ],
)
def test_grouped_products_count_each_packed_row_once(
    left: list[int], right: list[int], flops: int, out_numel: int
) -> None:
    packed = len(left) == 2 or len(right) == 2
    grouped = cost(
        "aten::_grouped_mm", [left, right, [3] if packed else []], [BF16, BF16, "int" if packed else NOTHING]
    )
    scales = [[96, 1], [3, 16]]
    scaled = cost(
        "aten::_scaled_grouped_mm",
        [left, right, *scales, [3] if packed else []],
        [FP8, FP8, FP32, FP32, "int" if packed else NOTHING],
    )

    operands = math.prod(left) + math.prod(right)
    assert grouped is not None
    assert scaled is not None
    assert (grouped.flops, grouped.bytes, grouped.dtype) == (flops, 2 * (operands + out_numel), "bf16")
    assert (scaled.flops, scaled.bytes, scaled.dtype) == (flops, operands + 2 * out_numel, "fp8")


@pytest.mark.parametrize(
    ("sizes", "types"),
    [
        ([[96, 8], [3, 8, 16]], [BF16, BF16]),  # without the ends of the groups
        ([[96, 8], [3, 8, 16], [4]], [BF16, BF16, "int"]),  # four ends for three groups
        ([[96, 8], [3, 9, 16], [3]], [BF16, BF16, "int"]),
        ([[3, 96, 8], [2, 8, 16], []], [BF16, BF16, NOTHING]),
    ],
)
def test_grouped_products_that_contradict_themselves_have_no_cost(sizes: list[object], types: list[str]) -> None:
    assert cost("aten::_grouped_mm", sizes, types) is None


def test_products_of_fp4_hold_two_values_a_byte() -> None:
    fp4 = cost("aten::_scaled_mm", [[32, 64], [64, 16]], ["c10::Float4_e2m1fn_x2"] * 2)

    assert fp4 is not None
    assert (fp4.flops, fp4.dtype, fp4.bytes) == (2 * 32 * 128 * 16, "fp4", 32 * 64 + 64 * 16 + 2 * 32 * 16)


def test_scaled_products_of_serving_engines_have_their_factors_elsewhere() -> None:
    vllm = cost("_C::cutlass_scaled_mm", [[32, 16], [32, 64], [64, 16], [1], [1]], [FP32, FP8, FP8, FP32, FP32])
    sglang = cost("sgl_kernel::fp8_scaled_mm", [[32, 64], [64, 16], [32], [16]], [FP8, FP8, FP32, FP32])

    assert vllm is not None
    assert sglang is not None
    assert vllm.flops == sglang.flops == 2 * 32 * 64 * 16
    assert vllm.bytes - sglang.bytes == 2 * 32 * 16


# Kernels that TorchInductor generated ---------------------------------------------------------------------------------


def generated(name: str, shapes: list[list[int]], counts: list[int], dtype: str = BF16) -> OpCost | None:
    sizes = [*shapes, *([] for _ in counts)]
    types = [dtype] * len(shapes) + [SCALAR] * len(counts)
    return cost(name, sizes, types, [""] * len(shapes) + [str(count) for count in counts])


@pytest.mark.parametrize(
    ("name", "shapes", "counts", "total_bytes"),
    [
        ("triton_poi_fused_add_0", [[8, 64], [64], [8, 64]], [512], 2 * (512 + 64 + 512)),
        ("triton_poi_fused_silu_2", [[8, 64], [8, 128], [8, 64]], [512], 2 * 3 * 512),  # half of the second is read
        ("triton_poi_fused_clone_3", [[8, 64], [64, 8]], [8, 64], 2 * 2 * 512),  # ynumel, xnumel
        ("triton_poi_fused_add_4", [[512], [512]], [7, 512], 2 * 2 * 512),  # 7 is an argument of its own
        ("triton_red_fused_mean_0", [[8, 64], [64], [8, 64]], [8, 64], 2 * (512 + 64 + 512)),
        ("triton_per_fused_native_layer_norm_1", [[8, 64], [8]], [8, 64], 2 * (512 + 8)),
    ],
)
def test_generated_kernels_move_their_tensors_once(
    name: str, shapes: list[list[int]], counts: list[int], total_bytes: int
) -> None:
    op_cost = generated(name, shapes, counts)

    assert op_cost is not None
    assert (op_cost.kind, op_cost.bytes) == ("memory", total_bytes)


@pytest.mark.parametrize(
    ("name", "shapes", "counts"),
    [
        ("triton_poi_fused_embedding_0", [[512], [50304, 64], [512, 64]], [512 * 64]),  # which rows is not recorded
        ("triton_poi_fused_add_0", [[8, 64]], []),
        ("triton_red_fused_mean_0", [[8, 64]], [8]),
        ("triton_for_fused_0", [[8, 64], [64]], [512]),
        ("triton_tem_fused_mm_2", [[8, 64], [32, 16], [8, 16]], [8]),
        ("triton_tem_fused_convolution_2", [[8, 64], [64, 16], [8, 16]], [8]),
        ("triton__0d1d2d", [[8, 64], [8, 64]], [512]),
    ],
)
def test_generated_kernels_whose_work_is_not_proven_have_no_cost(
    name: str, shapes: list[list[int]], counts: list[int]
) -> None:
    assert generated(name, shapes, counts) is None


def test_templates_of_products_have_the_flops_of_the_product() -> None:
    product = generated("triton_tem_fused_addmm_relu_2", [[16], [8, 64], [64, 16], [8, 16]], [])
    batched = generated("triton_tem_fused_bmm_3", [[3, 8, 64], [3, 64, 16], [3, 8, 16]], [])

    assert product is not None
    assert batched is not None
    assert (product.flops, product.bytes, product.kind) == (2 * 8 * 64 * 16, 2 * (16 + 512 + 1024 + 128), "gemm")
    assert batched.flops == 3 * product.flops


def test_padding_and_dilation_count_in_a_convolution() -> None:
    sizes: list[object] = [[1, 64, 7, 7], [64, 64, 3, 3], [], [], [], [], [], [], []]
    padded = cost(
        "aten::convolution", sizes, conv_types(), ["", "", "", "[1, 1]", "[1, 1]", "[1]", "False", "[0]", "1"]
    )
    dilated = cost("aten::convolution", sizes, conv_types(), ["", "", "", "[1]", "[2]", "[2, 2]", "False", "[0]", "1"])
    bare = cost("aten::convolution", sizes, conv_types(), ["", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1"])

    assert padded is not None
    assert dilated is not None
    assert bare is not None
    assert padded.flops == dilated.flops == 2 * 49 * 64 * 64 * 9
    assert bare.flops == 2 * 25 * 64 * 64 * 9


def test_groups_divide_the_work_of_a_convolution() -> None:
    sizes: list[object] = [[1, 64, 8, 8], [64, 1, 3, 3], [], [], [], [], [], [], []]
    op_cost = cost(
        "aten::cudnn_convolution", sizes, [BF16] * 9, ["", "", "[1]", "[1]", "[1]", "64", "False", "False", ""]
    )

    assert op_cost is not None
    assert op_cost.flops == 2 * 64 * 64 * 9
    assert (op_cost.groups, op_cost.channels_in, op_cost.channels_out) == (64, 1, 64)


def test_gradients_of_a_convolution_are_two_parts() -> None:
    sizes: list[object] = [[8, 32, 6, 6], [8, 16, 8, 8], [32, 16, 3, 3], *[[]] * 8]
    types = [FP32] * 3 + [NOTHING] * 8
    concrete = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    both = cost("aten::convolution_backward", sizes, types, concrete)
    one = cost("aten::convolution_backward", sizes, types, [*concrete[:-1], "[False, True, True]"])

    assert both is not None
    assert one is not None
    assert [part.name for part in both.backward_passes] == ["dgrad", "wgrad"]
    assert [part.name for part in one.backward_passes] == ["wgrad"]
    assert both.flops == 2 * one.flops == 2 * 2 * 8 * 32 * 36 * 16 * 9


def attention(causal: str, rows: int = 128, columns: int = 128, heads_k: int = 8) -> OpCost | None:
    sizes: list[object] = [[2, 8, rows, 64], [2, heads_k, columns, 64], [2, heads_k, columns, 64], [], [], [], []]
    types = [BF16] * 3 + [SCALAR] * 4
    return cost("aten::_scaled_dot_product_flash_attention", sizes, types, ["", "", "", "0.", causal, "False", ""])


def test_causal_attention_is_half_of_the_work() -> None:
    full, causal = attention("False"), attention("True")

    assert full is not None
    assert causal is not None
    assert full.flops == 2 * causal.flops == 2 * 2 * 8 * 128 * 128 * 128
    assert full.bytes == causal.bytes == 2 * 4 * (2 * 8 * 128 * 64) + 4 * 2 * 8 * 128


def test_causal_attention_of_unequal_lengths_has_no_cost_and_cross_attention_has() -> None:
    assert attention("True", 64, 128) is None
    assert attention("False", 64, 128) is not None
    assert attention("False", heads_k=2) is not None
    assert attention("False", heads_k=3) is None
    assert attention("maybe") is None


def test_packed_sequences_have_no_cost() -> None:
    sizes: list[object] = [[256, 1, 8, 64]] * 3 + [[5], [5], [], [], [], [], [], []]
    types = [BF16] * 3 + ["int", "int"] + [SCALAR] * 6
    concrete = ["", "", "", "", "", "128", "128", "0.", "False", "False", ""]

    assert cost("aten::_flash_attention_forward", sizes, types, concrete) is None
    assert cost("aten::_flash_attention_forward", [*sizes[:3], *[[]] * 8], types, concrete) is not None


@pytest.mark.parametrize("longest", [["128"], ["128", "128"]], ids=["old", "new"])
@pytest.mark.parametrize(("mask", "divisor"), [("0", 1), ("1", 2), ("2", 2)])
def test_mask_type_is_found_in_both_signatures_of_efficient_attention(
    longest: list[str], mask: str, divisor: int
) -> None:
    concrete = ["", "", "", "", "", "", *longest, "0.", mask, "True", "", "", ""]
    rest = len(concrete) - 3
    sizes: list[object] = [[2, 128, 8, 64]] * 3 + [[]] * rest
    op_cost = cost("aten::_efficient_attention_forward", sizes, [BF16] * 3 + [NOTHING] * rest, concrete)

    assert op_cost is not None
    assert op_cost.flops == 2 * 2 * 8 * 128 * 128 * 128 // divisor


@pytest.mark.parametrize(
    ("name", "sizes", "types", "concrete", "strides", "total_bytes"),
    [
        ("aten::add", [[8, 4], [8, 4], []], [FP32, FP32, SCALAR], None, None, 3 * 128),
        ("aten::add", [[8, 4], [4], []], [FP32, FP32, SCALAR], None, None, 128 + 16 + 128),
        ("aten::add", [[8, 4], [8, 4], []], [FP32, FP32, SCALAR], None, [[4, 1], [0, 1], []], 128 + 16 + 128),
        ("aten::add_", [[8, 4], [8, 4], []], [BF16, BF16, SCALAR], None, None, 3 * 64),
        ("aten::mul", [[8, 4], [8, 4]], [BF16, FP32], None, None, 64 + 128 + 128),
        ("aten::mul", [[8, 4], []], [BF16, "double"], None, None, 64 + 8 + 64),
        ("aten::gt", [[8, 4], []], [FP32, SCALAR], None, None, 128 + 32),
        ("aten::where", [[8, 4], [8, 4], []], ["bool", BF16, FP32], None, None, 32 + 64 + 4 + 64),
        ("aten::copy_", [[8, 4], [8, 4], []], [BF16, FP32, SCALAR], None, None, 64 + 128),
        ("aten::copy_", [[8, 4], [4], []], [BF16, FP32, SCALAR], None, None, 64 + 16),
        ("aten::fill_", [[8, 4], []], [FP32, SCALAR], None, None, 128),
        ("aten::_softmax", [[8, 4], [], []], [BF16, SCALAR, SCALAR], ["", "-1", "True"], None, 64 + 128),
        ("aten::native_layer_norm", [[8, 4], [], [4], [4], []], [BF16, "", BF16, BF16, ""], None, None, 128),
        ("aten::embedding", [[100, 8], [3, 2], [], [], []], [FP32, "long int", "", "", ""], None, None, 48 + 2 * 192),
        ("aten::sum", [[8, 4], []], [FP32, ""], None, None, 128),
        ("aten::index_select", [[100, 8], [], [5]], [FP32, SCALAR, "long int"], ["", "0", ""], None, 40 + 2 * 160),
        ("aten::index_select", [[100, 8], [], [5]], [FP32, SCALAR, "long int"], ["", "-1", ""], None, 40 + 2 * 2000),
        ("aten::gather", [[9, 8], [], [5, 8], []], [BF16, SCALAR, "long int", SCALAR], None, None, 320 + 2 * 80),
        ("aten::index_add_", [[9, 8], [], [5], [5, 8]], [FP32, SCALAR, "long int", FP32], None, None, 40 + 3 * 160),
        ("aten::scatter_add_", [[9, 8], [], [5, 8], [5, 8]], [FP32, SCALAR, "int", FP32], None, None, 160 + 3 * 160),
    ],
)
def test_ops_that_move_data_count_each_input_and_output_once(
    name: str, sizes: list[object], types: list[str], concrete: list[str] | None, strides: object, total_bytes: int
) -> None:
    op_cost = cost(name, sizes, types, concrete, strides)

    assert op_cost is not None
    assert op_cost.kind == "memory"
    assert op_cost.bytes == total_bytes


def test_batch_norm_reads_twice_in_training_only() -> None:
    sizes: list[object] = [[8, 4, 2, 2], [4], [4], [4], [4], [], [], []]
    types = [FP32] * 5 + [SCALAR] * 3
    training = cost("aten::cudnn_batch_norm", sizes, types, ["", "", "", "", "", "True", "0.1", "1e-5"])
    evaluation = cost("aten::cudnn_batch_norm", sizes, types, ["", "", "", "", "", "False", "0.1", "1e-5"])

    assert training is not None
    assert evaluation is not None
    assert (training.bytes, evaluation.bytes) == (3 * 512, 2 * 512)


# No wrong number ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "types"),
    [
        ([[4, 8], [9, 16]], [BF16, BF16]),
        ([[4, 8]], [BF16]),
        ([[4, 8], [8, 16, 1]], [BF16, BF16]),
        ([[4, 8], [8]], [BF16, BF16]),
        ([[4, -8], [-8, 16]], [BF16, BF16]),
        ([["s0", 8], [8, 16]], [BF16, BF16]),
        ([[4.0, 8], [8, 16]], [BF16, BF16]),
        ([[True, 8], [8, 16]], [BF16, BF16]),
        ([[4, [8]], [8, 16]], [BF16, BF16]),
        ([[4, 8], [8, 16]], [BF16, FP32]),
        ([[4, 8], [8, 16]], ["quint8", "quint8"]),
        ([[4, 8], [8, 16]], ["c10::complex<float>"] * 2),
        ([[4, 8], [8, 16]], ["long int", "long int"]),
        ([[4, 8], [8, 16]], ["", ""]),
        ([[4, 8], [8, 16]], []),
        ([], []),
        ([[1 << 40, 1 << 40], [1 << 40, 16]], [BF16, BF16]),
    ],
)
def test_inputs_that_make_no_sense_have_no_cost(sizes: list[object], types: list[str]) -> None:
    assert cost("aten::mm", sizes, types) is None


@pytest.mark.parametrize("dims", [None, "", "[", "{}", "null", "5", '"x"', "[null]", "[[4,8],null]", "[[4,8],[8,16]"])
def test_texts_that_are_no_lists_have_no_cost(dims: str | None) -> None:
    assert cost_of_op("aten::mm", dims, json.dumps([BF16, BF16])) is None
    assert cost_of_op("aten::mm", "[[4,8],[8,16]]", dims) is None


def test_what_a_formula_needs_and_does_not_get_leaves_no_cost() -> None:
    convolution: list[object] = [[1, 64, 7, 7], [64, 64, 3, 3], [], [], [], [], [], [], []]
    stride, full = ["", "", "", "[1]", "[1]", "[1]", "False", "[0]", "1"], conv_types()

    assert cost("aten::convolution", convolution, full, stride) is not None
    assert cost("aten::convolution", convolution, full, None) is None
    assert cost("aten::convolution", convolution, full, ["", "", "", "[0]", *stride[4:]]) is None
    assert cost("aten::convolution", convolution, full, [*stride[:8], "3"]) is None
    assert cost("aten::convolution", [[1, 64, 2, 2], *convolution[1:]], full, [*stride[:4], "[0]", *stride[5:]]) is None
    assert cost("aten::mm", [[4, 8], [8, 16]], [BF16, BF16], strides=[[8, 1], [16]]) is None
    assert cost("aten::frobnicate", [[4, 8], [8, 16]], [BF16, BF16]) is None


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)
shapes = st.lists(st.lists(st.integers(-1, 40), max_size=5) | junk, max_size=16)
kinds = st.lists(
    st.sampled_from([BF16, FP32, "long int", "bool", SCALAR, LIST, "TensorList", "", "mystery"]), max_size=16
)
values = st.lists(
    st.sampled_from(["", "1", "0", "True", "[1, 1]", "[True, False, True]", "0.5", "nan", "[", "-3"]), max_size=16
)


@given(st.sampled_from(sorted(FORMULAS)), shapes, kinds, shapes | st.none(), values | st.none())
def test_junk_never_raises(name: str, sizes: object, types: object, strides: object, concrete: object) -> None:
    texts = [None if part is None else json.dumps(part) for part in (sizes, types, strides, concrete)]
    op_cost = cost_of_op(name, *texts)

    assert op_cost is None or (op_cost.flops >= 0 and op_cost.bytes >= 0 and op_cost.dtype)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 8))
def test_a_batch_of_products_is_as_many_products(m: int, n: int, k: int, batch: int) -> None:
    one = cost("aten::mm", [[m, k], [k, n]], [FP32, FP32])
    many = cost("aten::bmm", [[batch, m, k], [batch, k, n]], [FP32, FP32])

    assert one is not None
    assert many is not None
    assert (many.flops, many.bytes) == (batch * one.flops, batch * one.bytes)


# Against PyTorch ------------------------------------------------------------------------------------------------------


def counted(run: Callable[[Any], object]) -> int:
    """What torch.utils.flop_counter says about a call on meta tensors."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        run(torch)
    return int(counter.get_total_flops())


CONVOLUTIONS = [
    ([2, 8, 15, 17], [12, 8, 3, 3], [2, 1], [1, 2], [1, 2], False, [0, 0], 1),
    ([2, 8, 9, 9], [8, 6, 2, 2], [2, 2], [0, 0], [1, 1], True, [1, 1], 1),
    ([2, 8, 15], [12, 8, 3], [2], [1], [1], False, [0], 1),
    ([1, 4, 6, 7, 8], [6, 4, 3, 3, 3], [1, 1, 1], [1, 0, 1], [1, 1, 1], False, [0, 0, 0], 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_agree_with_the_flop_counter(case: tuple[Any, ...]) -> None:
    x, weight, stride, padding, dilation, transposed, added, groups = case
    concrete = ["", "", "", *(str(part) for part in (stride, padding, dilation, transposed, added, groups))]
    ours = cost("aten::convolution", [x, weight, *[[]] * 7], conv_types(FP32), concrete)
    theirs = counted(
        lambda torch: torch.ops.aten.convolution(
            torch.empty(x), torch.empty(weight), None, stride, padding, dilation, transposed, added, groups
        )
    )

    assert ours is not None
    assert ours.flops == theirs > 0


@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True], [True, False, False]], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_gradients_of_convolutions_agree_with_the_flop_counter(case: tuple[Any, ...], mask: list[bool]) -> None:
    torch = pytest.importorskip("torch")
    x, weight, stride, padding, dilation, transposed, added, groups = case
    with torch.device("meta"):
        out = torch.ops.aten.convolution(
            torch.empty(x), torch.empty(weight), None, stride, padding, dilation, transposed, added, groups
        )
    dy = list(out.shape)
    concrete = ["", "", "", "[0]", *(str(p) for p in (stride, padding, dilation, transposed, added, groups, mask))]
    ours = cost("aten::convolution_backward", [dy, x, weight, *[[]] * 8], [FP32] * 3 + [NOTHING] * 8, concrete)
    theirs = counted(
        lambda torch: torch.ops.aten.convolution_backward(
            torch.empty(dy), torch.empty(x), torch.empty(weight), [weight[0]], *case[2:], mask
        )
    )

    assert ours is not None
    assert ours.flops == theirs > 0


@pytest.mark.parametrize(
    ("name", "call", "shapes_"),
    [
        ("aten::mm", "mm", [[5, 7], [7, 11]]),
        ("aten::addmm", "addmm", [[11], [5, 7], [7, 11]]),
        ("aten::bmm", "bmm", [[3, 5, 7], [3, 7, 11]]),
        ("aten::baddbmm", "baddbmm", [[3, 5, 11], [3, 5, 7], [3, 7, 11]]),
    ],
)
def test_products_agree_with_the_flop_counter(name: str, call: str, shapes_: list[list[int]]) -> None:
    ours = cost(name, list(shapes_), [FP32] * len(shapes_))
    theirs = counted(lambda torch: getattr(torch.ops.aten, call)(*(torch.empty(shape) for shape in shapes_)))

    assert ours is not None
    assert ours.flops == theirs > 0


@pytest.mark.parametrize("value_size", [64, 32])
def test_attention_agrees_with_the_flop_counter_where_nothing_is_masked(value_size: int) -> None:
    pytest.importorskip("torch")
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    q, k, v = (2, 8, 128, 64), (2, 8, 96, 64), (2, 8, 96, value_size)
    forward = cost(
        "aten::_scaled_dot_product_efficient_attention",
        [q, k, v, [], [], [], [], []],
        [BF16] * 3 + [NOTHING] * 5,
        ["", "", "", "", "True", "0.", "False", ""],
    )
    backward = cost(
        "aten::_scaled_dot_product_efficient_attention_backward",
        [[2, 8, 128, value_size], q, k, v, *[[]] * 9],
        [BF16] * 4 + [NOTHING] * 9,
        [*[""] * 9, "0.", "[True, True, True, False]", "False", ""],
    )

    assert forward is not None
    assert backward is not None
    assert forward.flops == sdpa_flop_count(q, k, v)
    assert backward.flops == sdpa_backward_flop_count((2, 8, 128, value_size), q, k, v)
