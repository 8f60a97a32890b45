"""Comparisons of one program on two devices whose rates are known exactly, with a planted loss or none."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import perfdoctor
from perfdoctor.analysis.device_work import DeviceWork, ratios_on
from perfdoctor.comparison.device_comparison import DeviceComparison
from perfdoctor.gpu import Device, find_device
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

A100, H100, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB"
CAPABILITY = {A100: (8, 0), H100: (9, 0), V100: (7, 0)}
SM_COUNT = {A100: 108, H100: 132, V100: 80}
ON_A100 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
ON_H100 = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
TF32, SGEMM = "ampere_tf32_s1688gemm_tf32_128x128_ldg4_stages_32x3_nn", "ampere_sgemm_128x64_nn"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>>"
)
MATRIX, VECTOR = [[4096, 4096], [4096, 4096]], [[64, 1024, 1024], [64, 1024, 1024], []]
STEP_US, STEPS = 6000.0, 4


class Part(NamedTuple):
    """An op of a step with its kernel, in us, and the kernel's thread blocks."""

    op: str
    shapes: list[list[int]]
    types: str
    kernel: str
    us: float
    blocks: int = 4096


PRODUCT = Part("aten::mm", MATRIX, "c10::BFloat16", ON_A100, 700.0)
SUM = Part("aten::add", VECTOR, "float", ADD, 600.0)


def write(path: Path, device: str, *parts: Part, wait_us: float = 0.0, steps: bool = True) -> Path:
    """Steps that launch these kernels one behind the other, after a wait for the CPU."""
    trace = TraceBuilder(device, CAPABILITY[device], SM_COUNT[device])
    for number in range(STEPS):
        start = at = STEP_US * number
        length = wait_us + sum(part.us for part in parts)
        if steps:
            trace.step(start, length)
        at += wait_us
        for position, part in enumerate(parts):
            launch_us = start + max(wait_us - 30, 0) + 8 * position
            trace.op(part.op, launch_us, 7, shapes=part.shapes, types=[part.types] * len(part.shapes))
            trace.kernel(part.kernel, at, part.us, launch_us=launch_us + 1, grid=(part.blocks, 1, 1))
            at += part.us
    return trace.write(path)


def works_of(device: str, part: Part) -> DeviceWork:
    trace = TraceBuilder(device, CAPABILITY[device], SM_COUNT[device]).step(0, part.us + 10)
    trace.op(part.op, 0, 7, shapes=part.shapes, types=[part.types] * len(part.shapes))
    trace.kernel(part.kernel, 10, part.us, launch_us=1, grid=(part.blocks, 1, 1))
    (work,) = Rank(trace.trace()).breakdown.device_work
    return work


@pytest.fixture
def compare(tmp_path: Path):
    def compare_parts(
        before: list[Part], after: list[Part], device: str = A100, there: str = H100, **after_with: float
    ):
        one = write(tmp_path / "before.json", device, *before)
        return perfdoctor.compare(one, write(tmp_path / "after.json", there, *after, **after_with))

    return compare_parts


def devices_of(comparison: perfdoctor.Comparison) -> DeviceComparison:
    assert comparison.devices is not None
    return comparison.devices


def on_h100(part: Part, kernel: str | None = None, *, times: float = 1.0) -> Part:
    """The part as an H100 runs it that keeps its share of the peak, by data sheets: TFLOP/s in bf16, or GB/s."""
    ratio = 312 / 989.4 if part.types == "c10::BFloat16" else 2039 / 3350
    return part._replace(us=part.us * ratio * times, kernel=kernel or part.kernel)


def test_a_device_that_gives_what_its_rates_promise_loses_nothing(compare) -> None:
    comparison = compare([PRODUCT, SUM], [on_h100(PRODUCT, ON_H100), on_h100(SUM)])
    made = devices_of(comparison)
    assert (made.before, made.after) == ("NVIDIA A100 SXM 80GB", "NVIDIA H100 SXM5")
    assert made.after_ns == pytest.approx(1000 * (700 * 312 / 989.4 + 600 * 2039 / 3350), rel=5e-3)
    assert made.usual_low_ns <= made.after_ns <= made.usual_high_ns
    assert made.usual_ns == pytest.approx(made.after_ns, rel=0.2)
    assert (made.lost, made.alike_ratio, made.paired_share) == ((), None, 1.0)
    assert {part.scales_with for part in made.parts} >= {"tensor_cores", "bandwidth"}
    assert not comparison.comparable  # a gate judges changes of a program, and this is none
    assert comparison.promises == ()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (PRODUCT, on_h100(PRODUCT, times=3), "older_kernels"),
        (
            PRODUCT._replace(types="float", kernel=TF32),
            PRODUCT._replace(types="float", kernel=SGEMM, us=5000),
            "tf32_off",
        ),
        (PRODUCT, PRODUCT._replace(kernel=SGEMM.replace("sgemm", "hgemm"), us=2000), "no_tensor_cores"),
        (SUM, on_h100(SUM, "triton_poi_fused_add_0", times=3), "other_path"),
        (PRODUCT, on_h100(PRODUCT, ON_H100, times=3), "unknown"),
        (SUM, on_h100(SUM, times=3), "unknown"),
        # cuBLAS runs float32 on CUDA cores of an H100 by kernels that are named for sm80.
        (
            PRODUCT._replace(types="float", kernel=SGEMM, us=8000),
            PRODUCT._replace(types="float", kernel=SGEMM, us=9000),
            "unknown",
        ),
        (SUM, SUM._replace(us=3000, blocks=4), "small_work"),
    ],
)
def test_what_did_not_get_its_share_has_its_reason(compare, before: Part, after: Part, reason: str) -> None:
    beside = Part("aten::mul", VECTOR, "float", ADD.replace("_add", "_mul"), 900.0)
    made = devices_of(compare([before, beside], [after, on_h100(beside)]))
    (lost,) = made.lost
    assert (f"aten::{lost.op}", lost.reason) == (before.op, reason)
    assert lost.after_ns == pytest.approx(1000 * after.us)
    assert lost.kernel_after == after.kernel
    assert made.alike_ratio is None


@pytest.mark.parametrize("times", [0.5, 0.9, 1.0])
@pytest.mark.parametrize(("part", "kernel"), [(PRODUCT, ON_H100), (SUM, None)])
def test_what_got_its_share_is_not_named(compare, part: Part, kernel: str | None, times: float) -> None:
    assert devices_of(compare([part], [on_h100(part, kernel, times=times)])).lost == ()


def test_kernels_that_all_take_longer_alike_point_at_clocks(compare) -> None:
    before = [SUM, SUM._replace(op="aten::mul"), SUM._replace(op="aten::sub")]
    comparison = compare(before, [on_h100(part, times=3) for part in before])
    made = devices_of(comparison)
    assert made.alike_ratio == pytest.approx(3, rel=0.2)
    assert {lost.reason for lost in made.lost} == {"all_alike"}
    comparison.print()


def test_the_wait_for_the_cpu_is_named_where_it_is_large(compare, capsys: pytest.CaptureFixture[str]) -> None:
    fast = [on_h100(PRODUCT, ON_H100), on_h100(SUM)]
    waits = compare([PRODUCT, SUM], fast, wait_us=900.0)
    waits.print()
    text = capsys.readouterr().out
    assert "H100 SXM5 takes" in text
    assert "The GPU waits for the CPU for" in text
    assert max(len(line) for line in text.splitlines()) <= 80
    compare([PRODUCT, SUM], fast).print()
    assert "The GPU waits for the CPU" not in capsys.readouterr().out


def test_work_without_a_partner_is_not_judged(compare, capsys: pytest.CaptureFixture[str]) -> None:
    more = SUM._replace(op="aten::div", us=400.0)
    comparison = compare([PRODUCT, SUM], [on_h100(PRODUCT, ON_H100), on_h100(SUM), more])
    made = devices_of(comparison)
    assert made.paired_share < 0.75
    assert all(lost.op != "div" for lost in made.lost)
    assert [(work.side, work.op, work.time_ns) for work in made.alone] == [("after", "div", 400_000)]
    comparison.print()
    text = capsys.readouterr().out
    assert "has no partner" in text
    assert "400 us on H100 SXM5" in text


def test_work_of_the_first_device_without_a_partner_is_named(compare) -> None:
    made = devices_of(compare([PRODUCT, SUM, SUM._replace(op="aten::div")], [on_h100(PRODUCT, ON_H100), on_h100(SUM)]))
    assert [(work.side, work.op) for work in made.alone] == [("before", "div")]
    assert made.paired_share == 1.0


@pytest.mark.parametrize("there", [A100, "NVIDIA Graphics Device"])
def test_one_device_or_an_unknown_one_is_no_comparison_of_devices(compare, there: str) -> None:
    CAPABILITY.setdefault(there, (9, 0))
    SM_COUNT.setdefault(there, 132)
    assert compare([PRODUCT], [PRODUCT], there=there).devices is None


def test_another_model_is_no_comparison_of_devices(compare) -> None:
    attention = Part("aten::_scaled_dot_product_flash_attention", MATRIX, "c10::BFloat16", "flash_fwd_kernel", 900.0)
    comparison = compare([PRODUCT] * 4, [attention] * 4)
    assert "model" in {reason.aspect for reason in comparison.reasons}
    assert comparison.devices is None


def test_ratios_of_one_device_to_itself_are_one() -> None:
    device = find_device(A100)
    assert isinstance(device, Device)
    works = [works_of(A100, part) for part in (PRODUCT, SUM)]
    assert np.allclose(ratios_on(device, device, works)[:, 1], 1.0)
