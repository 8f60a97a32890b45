"""The device of a trace: as it is named, else what its kernels leave."""

from __future__ import annotations

from typing import Any

import pytest

from perfdoctor.analysis.kernels.hardware import Hardware
from perfdoctor.gpu.devices import PrecisionAdvice
from perfdoctor.gpu.generations import capability_of, generation_of, generations_have_tensor_cores
from perfdoctor.pipeline import summarize_rank
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

VOLTA, TURING, AMPERE = "volta_sgemm_128x64_nn", "turing_fp16_s1688gemm_fp16_128x128_nn", "ampere_sgemm_128x64_nn"
HOPPER = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32"
CDNA3 = "Cijk_Ailk_Bljk_SB_MT64x64x16_MI32x32x1_SE_ISA942"


def unnamed(*kernels: str, sm_count: int | None = None, **options: Any) -> Hardware:
    """The hardware of kernels whose device nothing names, on so many multiprocessors."""
    trace = TraceBuilder(device=None, **options)
    for number, name in enumerate(kernels):
        trace.kernel(name, 100 * number, 50, launch_us=100 * number)
    if sm_count is not None:
        args = {"device": 0, "stream": 7, "warps per SM": 16.0, "grid": [sm_count, 1, 1], "block": [512, 1, 1]}
        trace.event(ph="X", cat="kernel", name="any", pid=0, tid=7, ts=9000, dur=1, args=args)
    return Rank(trace.trace()).hardware


def test_a_named_device_is_the_one_that_the_trace_names() -> None:
    hardware = Rank(
        TraceBuilder(device="Tesla T4", capability=(7, 5), sm_count=40).kernel(VOLTA, 0, 9).trace()
    ).hardware

    assert (hardware.label, hardware.source, hardware.candidates) == ("Tesla T4", "trace", ())
    assert hardware.device is not None


@pytest.mark.parametrize(
    ("kernel", "sm_count", "label", "capability", "tensor_cores"),
    [
        (VOLTA, None, "Volta or Turing GPU", None, None),
        (VOLTA, 80, "V100", (7, 0), True),
        (VOLTA, 40, "Turing GPU", (7, 5), True),  # T4 or RTX 2070 SUPER
        (VOLTA, 16, "Turing GPU", (7, 5), None),  # GTX 1650
        (VOLTA, 8, "Volta or Turing GPU", None, None),  # Xavier, or a small part of Turing
        (TURING, None, "Turing GPU", (7, 5), True),  # a kernel that uses them
        (AMPERE, None, "Ampere or Ada GPU", None, True),
        (AMPERE, 108, "A100 or A800", (8, 0), True),
        (AMPERE, 56, "Ampere or Ada GPU", None, True),  # A30, RTX A4500 or RTX 4070 SUPER
        (AMPERE, 84, "Ampere or Ada GPU", None, True),  # A40, RTX A6000, RTX 3090 Ti
        (HOPPER, 78, "H20", (9, 0), True),
        (HOPPER, 132, "Hopper GPU", (9, 0), True),  # H100, H200, H800 or GH200
    ],
)
def test_kernels_leave_some_devices(
    kernel: str, sm_count: int | None, label: str, capability: tuple[int, int] | None, tensor_cores: bool | None
) -> None:
    hardware = unnamed(kernel, sm_count=sm_count)

    assert (hardware.label, hardware.source) == (f"{label} (by its kernels)", "kernels")
    assert (hardware.capability, hardware.sm_count, hardware.tensor_cores) == (capability, sm_count, tensor_cores)


def test_architectures_of_amd_name_their_series() -> None:
    hardware = unnamed(CDNA3)

    assert (hardware.label, hardware.source) == ("MI300-series GPU (by its kernels)", "kernels")
    assert (hardware.device, hardware.capability, hardware.tensor_cores) == (None, None, True)


def test_nothing_is_known_without_proof() -> None:
    for hardware in (unnamed("my_kernel"), unnamed("my_kernel", sm_count=80)):
        assert (hardware.label, hardware.source, hardware.device, hardware.tensor_cores) == (None, None, None, None)
    trace = TraceBuilder(device=None).kernel(VOLTA, 0, 9, device=0).kernel(VOLTA, 20, 9, device=1)
    assert Rank(trace.trace()).hardware.label is None


def test_the_user_knows_better_than_the_kernels() -> None:
    trace = TraceBuilder(device=None).kernel(VOLTA, 0, 9).trace()
    hardware = Rank(trace, device_name="Tesla T4").hardware

    assert (hardware.label, hardware.source) == ("Tesla T4", "option")
    assert hardware.device is not None


def test_devices_of_one_chip_share_its_peaks_and_their_lowest_bandwidth() -> None:
    device = unnamed(AMPERE, sm_count=108).device

    assert device is not None
    assert device.peak_flops("bf16") == pytest.approx(312e12)
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(1555e9)
    assert (device.memory_bytes, device.link_bytes_per_s) == (None, 400e9)
    assert "A100 PCIe 80GB" in device.source


def test_where_peaks_differ_there_is_no_one_device_but_the_least_gain() -> None:
    hardware = unnamed(VOLTA, sm_count=80)

    assert hardware.device is None
    assert len(hardware.candidates) == 8
    advice = hardware.precision_advice
    assert advice is not None
    assert advice.precision == "fp16 autocast"  # Volta has neither TF32 nor bfloat16
    assert advice.peak_ratio == pytest.approx(130 / 16.4)


def test_advice_without_candidates_follows_the_capability() -> None:
    assert unnamed(VOLTA, sm_count=40).precision_advice == PrecisionAdvice("fp16 autocast", None)
    assert unnamed(AMPERE).precision_advice is None
    assert unnamed(VOLTA).precision_advice is None


def test_the_report_says_that_kernels_named_the_device() -> None:
    trace = TraceBuilder(device=None).kernel(HOPPER, 0, 9, launch_us=0)
    summary = summarize_rank(Rank(trace.trace()), ())

    assert (summary.trace.device, summary.trace.device_from) == ("Hopper GPU (by its kernels)", "kernels")


@pytest.mark.parametrize(
    ("generations", "sm_count", "tensor_cores"),
    [
        (("Volta",), None, True),
        (("Turing",), 40, True),
        (("Turing",), 24, None),
        (("Pascal",), None, False),
        (("Ampere", "Ada"), None, True),
        (("CDNA 2",), None, True),
        (("GCN 5",), None, False),
        (("RDNA 2", "RDNA 3"), None, None),
        ((), 80, None),
    ],
)
def test_tensor_cores_of_generations(
    generations: tuple[str, ...], sm_count: int | None, tensor_cores: bool | None
) -> None:
    assert generations_have_tensor_cores(generations, sm_count) is tensor_cores


def test_generations_by_capability_and_back() -> None:
    names = {(7, 0): "Volta", (7, 5): "Turing", (8, 6): "Ampere", (8, 9): "Ada", (9, 0): "Hopper", (12, 0): "Blackwell"}

    assert {capability: generation_of(capability, None) for capability in names} == names
    assert generation_of(None, "gfx950") == "CDNA 4"
    assert generation_of(None, None) is None
    assert capability_of(("Hopper",)) == (9, 0)
    assert capability_of(("Ampere",)) is None
    assert capability_of(()) is None
