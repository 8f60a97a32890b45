"""What a step should take on another device, on traces whose rates are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.analysis.kernels.device_scaling import SCALES_WITH
from perfdoctor.errors import InputError, UsageError
from perfdoctor.expectation import Expectation, expect_on
from perfdoctor.gpu import Device, find_device
from perfdoctor.gpu.roofline.efficiencies import Cell, count_samples, find_efficiency
from perfdoctor.rank import Rank
from perfdoctor.savings.expected_step import expect_step, judge_step, replay_with_ratios
from perfdoctor.testing import TraceBuilder

BF16 = "c10::BFloat16"
GEMM = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
SIZE = 8192
ROOF_US = 2 * SIZE**3 / 989.4e12 * 1e6  # on an H100
BIG_GEMM = find_efficiency(Cell("gemm", "bf16", "large"))
assert BIG_GEMM is not None
USUAL_US = ROOF_US / BIG_GEMM.expected


def device(name: str) -> Device:
    found = find_device(name)
    assert found is not None
    return found


H100, A100, B200 = device("H100"), device("A100-SXM4-80GB"), device("B200")


def program(kernel_us: float, gap_us: float = 0, steps: int = 3, *, waits: bool = True) -> TraceBuilder:
    """Steps of one bf16 product and some CPU work; each step waits for its product, or runs ahead of the GPU."""
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    step_us = kernel_us + gap_us + 10
    for number in range(steps):
        at = number * step_us
        builder.step(at, step_us)
        builder.op("aten::mm", at, 6, shapes=[[SIZE, SIZE]] * 2, types=[BF16] * 2)
        builder.kernel(GEMM, at + 5, kernel_us, launch_us=at + 1)
        if waits:
            builder.call("cudaDeviceSynchronize", at + 7, kernel_us - 1)
        builder.op("aten::add", at + kernel_us + 8, max(gap_us, 1))
    return builder


def expect(builder: TraceBuilder, on: Device | None = None, cpu_scale: float = 1.0) -> Expectation:
    return expect_on(Rank(builder.trace()), on, "0", cpu_scale)


def part_of(made: Expectation, name: str) -> tuple[int, float]:
    part = made.step.parts[SCALES_WITH.index(name)]
    return part.now_ns, part.expected_ratio


def test_a_step_of_products_at_the_usual_rate_scales_with_tensor_cores() -> None:
    made = expect(program(USUAL_US), A100)
    kernel_ns, ratio = part_of(made, "tensor_cores")

    assert kernel_ns == pytest.approx(USUAL_US * 1e3, rel=1e-3)
    assert ratio == pytest.approx(989.4 / 312, rel=0.01)
    assert made.step.expected_ns == pytest.approx(made.step.now_ns + (ratio - 1) * kernel_ns, rel=0.01)
    assert made.step.low_ns < made.step.expected_ns < made.step.high_ns
    assert (made.step.basis, made.verdict, made.on) == ("replayed", None, "NVIDIA A100 SXM 80GB")


def test_the_cpu_stays_and_scales_when_told() -> None:
    gap_us = 3000.0
    as_is, half = (expect(program(USUAL_US, gap_us), A100, scale).step.expected_ns for scale in (1.0, 0.5))
    assert as_is - half == pytest.approx(gap_us / 2 * 1e3, rel=0.02)


def test_a_step_that_waits_for_the_cpu_gains_nothing_by_a_faster_gpu() -> None:
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    for number in range(3):
        at = 1000 * number
        builder.step(at, 1000).op("aten::mm", at + 900, 6).kernel(GEMM, at + 905, 90, launch_us=at + 901)
    step = expect(builder, B200).step
    assert step.low_ns == pytest.approx(step.high_ns, rel=0.1)
    assert step.expected_ns > 0.9 * step.now_ns


@pytest.mark.parametrize(("cpu_us", "waits"), [(800.0, True), (20.0, False)])
def test_a_cpu_that_the_gpu_hid_is_named_where_it_no_longer_does(cpu_us: float, waits: bool) -> None:
    builder, at = TraceBuilder(device="NVIDIA A100-SXM4-80GB"), 0.0
    for number in range(40):
        builder.op("aten::mm", at, cpu_us, shapes=[[SIZE, SIZE]] * 2, types=[BF16] * 2)
        builder.kernel("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_tn", 10 + 5000 * number, 4999, launch_us=at + 1)
        at += cpu_us + 5
    builder.call("cudaDeviceSynchronize", at, 200_000 - at)
    made = expect(builder, B200)
    assert any("waits for the CPU there" in note for note in made.notes) == waits


def test_where_nothing_says_what_waits_the_account_bounds_the_step() -> None:
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    made = expect(builder.kernel(GEMM, 0, 500).kernel(GEMM, 700, 500), A100)
    ns, ratio = part_of(made, "tensor_cores")

    assert made.step.basis == "bounded"
    assert any("bounded by the account" in note for note in made.notes)
    assert made.step.expected_ns == pytest.approx(made.step.now_ns + (ratio - 1) * ns, rel=1e-3)
    assert made.step.low_ns >= made.step.now_ns


def test_on_its_own_device_a_usual_step_is_as_usual() -> None:
    made = expect(program(USUAL_US))
    assert (made.verdict, made.is_own_device, made.on) == ("as usual", True, H100.name)
    assert made.known_share == 1
    assert expect(program(USUAL_US), H100).verdict == "as usual"


@pytest.mark.parametrize(("times", "verdict"), [(3.0, "slower"), (1.1, "as usual"), (0.9, "as usual")])
def test_only_what_is_far_from_comparable_kernels_is_unusual(times: float, verdict: str) -> None:
    assert expect(program(times * USUAL_US)).verdict == verdict


def test_a_step_of_unknown_work_is_not_judged() -> None:
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132).step(0, 600)
    made = expect(builder.op("aten::mm", 0, 6).kernel(GEMM, 5, 500, launch_us=1))
    assert (made.verdict, made.known_share) == ("unknown", 0)


def test_a_wide_range_says_why() -> None:
    builder = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132).step(0, 600)
    made = expect(builder.op("aten::mm", 0, 6).kernel(GEMM, 5, 590, launch_us=1).kernel(ADD, 596, 3, launch_us=2), A100)
    assert made.is_wide
    assert any("were not recorded" in note for note in made.notes)


def test_a_lost_type_is_named() -> None:
    made = expect(program(USUAL_US), device("V100-SXM2-32GB"))
    assert any("no bf16 on Tensor Cores" in note for note in made.notes)
    assert not any("Tensor Cores" in note for note in expect(program(USUAL_US), A100).notes)


def test_what_it_rests_on_is_what_the_table_has() -> None:
    [ground] = expect(program(USUAL_US), A100).rests_on
    assert (ground.family, ground.dtype, ground.share, ground.known_share) == ("gemm", "bf16", 1, 1)
    assert (ground.kinds, ground.programs, ground.of_generation) == count_samples("gemm", "bf16", "Ampere")
    assert ground.kinds > ground.of_generation > 0
    assert count_samples("gemm", "bf16", "Pascal").of_generation == 0
    assert count_samples("scan", "bf16", "Ampere") == (0, 0, 0)


def test_sizes_come_from_the_evidence_window_of_a_capture() -> None:
    timing = TraceBuilder(device="NVIDIA H100 80GB HBM3", capability=(9, 0), sm_count=132)
    for number in range(3):
        at = number * (3 * USUAL_US + 10)
        timing.step(at, 3 * USUAL_US + 10).op("aten::mm", at, 6).kernel(GEMM, at + 5, 3 * USUAL_US, launch_us=at + 1)
        timing.call("cudaDeviceSynchronize", at + 7, 3 * USUAL_US - 1)
    alone = Rank(timing.trace())
    both = Rank(alone.raw_trace, evidence_trace=program(3 * USUAL_US).trace())

    assert expect_on(alone, None, "0").verdict == "unknown"
    made = expect_on(both, None, "0")
    assert (made.verdict, made.known_share) == ("slower", 1)
    assert made.step.expected_ns == pytest.approx(USUAL_US * 1e3, rel=0.05)


def on_cpu() -> TraceBuilder:
    return TraceBuilder(device=None).op("aten::mm", 0, 900).op("aten::add", 950, 50)


@pytest.mark.parametrize(
    ("builder", "words"),
    [
        (on_cpu(), "no work on a GPU"),
        (TraceBuilder(device="NVIDIA X999").kernel(GEMM, 0, 9, launch_us=0), "it is a NVIDIA X999"),
        (TraceBuilder(device=None).kernel("mine", 0, 9, launch_us=0), "does not say which GPU it is of, so"),
    ],
)
def test_a_recording_without_a_known_gpu_is_refused(builder: TraceBuilder, words: str) -> None:
    with pytest.raises(InputError, match=words):
        expect(builder, A100)


def test_a_device_without_peaks_is_refused() -> None:
    with pytest.raises(UsageError, match="peaks of NVIDIA GeForce GTX 1080 are not known"):
        expect(program(USUAL_US), device("GTX 1080"))


@given(
    ratios=st.lists(st.floats(0.1, 8), min_size=3, max_size=3),
    more=st.lists(st.floats(1, 3), min_size=3, max_size=3),
    cpu_scale=st.floats(0.2, 3),
    waits=st.booleans(),
)
def test_longer_kernels_or_a_slower_cpu_never_make_a_step_shorter(
    ratios: list[float], more: list[float], cpu_scale: float, waits: bool
) -> None:
    rank = Rank(program(300, 100, waits=waits).trace())
    assert rank.replay is not None
    times, longer = np.array(ratios), np.array(ratios) * np.array(more)

    assert replay_with_ratios(rank.replay, np.ones(3), 1.0) == pytest.approx(rank.replay.step_ns())
    shorter_ns = replay_with_ratios(rank.replay, times, cpu_scale)
    assert shorter_ns <= replay_with_ratios(rank.replay, longer, cpu_scale) + 1
    assert shorter_ns <= replay_with_ratios(rank.replay, times, 1.5 * cpu_scale) + 1


@given(
    split=st.lists(st.integers(0, 10**9), min_size=len(SCALES_WITH), max_size=len(SCALES_WITH)),
    ratio=st.floats(0.1, 10),
    cpu_scale=st.floats(0.1, 10),
)
def test_the_account_gives_a_range_in_order_and_the_step_where_nothing_changes(
    split: list[int], ratio: float, cpu_scale: float
) -> None:
    parts = dict(zip(SCALES_WITH, split, strict=True))
    scaling, weights = np.arange(len(SCALES_WITH), dtype=np.int8), np.ones(len(SCALES_WITH))
    ratios = np.outer(np.ones(len(SCALES_WITH)), [0.9 * ratio, ratio, 1.1 * ratio])
    step = expect_step(sum(split), parts, scaling, weights, ratios, None, cpu_scale)

    assert step.low_ns <= step.expected_ns <= step.high_ns
    same = expect_step(sum(split), parts, scaling, weights, np.ones((len(SCALES_WITH), 3)), None)
    assert same.low_ns == same.high_ns == same.now_ns
    assert judge_step(same, 1.0) == "as usual"
