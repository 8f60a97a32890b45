"""Devices: matched by whole words, never guessed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu import find_device, has_tensor_cores
from perfdoctor.gpu.devices import PrecisionAdvice, advise_precision, vendor_of


@pytest.mark.parametrize(
    ("name", "capability", "dtype", "tera_flops"),
    [
        ("Tesla V100-SXM2-16GB", (7, 0), "fp16", 125),
        ("Tesla T4", (7, 5), "fp16", 65),
        ("NVIDIA A100-SXM4-80GB", (8, 0), "tf32", 156),
        ("NVIDIA A100 80GB PCIe", (8, 0), "bf16", 312),
        ("NVIDIA PG509-210", (8, 0), "bf16", 312),
        ("NVIDIA A10", (8, 6), "bf16", 125),
        ("NVIDIA L40S", (8, 9), "bf16", 362),
        ("NVIDIA GeForce RTX 4090", (8, 9), "fp32", 82.6),
        ("NVIDIA H100 80GB HBM3", (9, 0), "bf16", 989.4),
        ("NVIDIA H100 PCIe", (9, 0), "bf16", 756),
        ("NVIDIA GB200", (10, 0), "bf16", 2500),
        ("NVIDIA B200", (10, 0), "bf16", 2250),
        ("NVIDIA RTX A4000", (8, 6), "bf16", 76.7),
        ("NVIDIA B300 SXM6 AC", (10, 3), "bf16", 2250),
        ("AMD Instinct MI300X", (9, 4), "bf16", 1307.4),
    ],
)
def test_known_names_have_their_peaks(name: str, capability: tuple[int, int], dtype: str, tera_flops: float) -> None:
    device = find_device(name, capability)

    assert device is not None
    assert device.peak_flops(dtype) == pytest.approx(tera_flops * 1e12)
    assert device.memory_bandwidth_bytes_per_s is not None
    assert device.source


@pytest.mark.parametrize(
    "name",
    [
        "",
        None,
        "AMD Radeon Graphics",
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H200 NVL",
        "NVIDIA L40",
        "NVIDIA T400",
        "NVIDIA GB300",
        "Quadro GP100",
    ],
)
def test_unknown_names_have_no_device(name: str | None) -> None:
    assert find_device(name) is None


def test_what_contradicts_the_name_is_no_match() -> None:
    assert find_device("NVIDIA H100 80GB HBM3", (9, 0), "nvidia") is not None
    assert find_device("NVIDIA H100 80GB HBM3", (8, 0)) is None
    assert find_device("NVIDIA H100 80GB HBM3", (9, 0), "amd") is None


def test_amd_major_nine_is_not_hopper() -> None:
    device = find_device("AMD Instinct MI210", (9, 0))

    assert device is not None
    assert device.compute_capability is None
    assert device.gfx_arch == "gfx90a"
    assert find_device("AMD Radeon Graphics", (9, 0)) is None


def test_units_are_bytes_and_flops() -> None:
    device = find_device("NVIDIA A100-SXM4-40GB")

    assert device is not None
    assert device.memory_bandwidth_bytes_per_s == pytest.approx(1.555e12)
    assert device.memory_bytes == 40 << 30
    assert device.sm_count == 108
    assert device.peak_flops("fp8") is None
    hash(device)


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("Tesla V100-SXM2-32GB", (7, 0)),
        ("Tesla T4", (7, 5)),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5)),
        ("NVIDIA RTX A4000", (8, 6)),
        ("NVIDIA B300 SXM6 AC", (10, 3)),
        ("NVIDIA A100-SXM4-40GB", None),
        ("AMD Instinct MI210", (9, 0)),
        ("AMD Instinct MI100", None),
        (None, (8, 6)),
    ],
)
def test_devices_with_tensor_cores(name: str | None, capability: tuple[int, int] | None) -> None:
    assert has_tensor_cores(name, capability) is True


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("Quadro GP100", (6, 0)),
        ("Tesla P100-PCIE-16GB", None),
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("NVIDIA GeForce GTX 1650", (7, 5)),
        ("NVIDIA GeForce GTX 1660 Ti", None),
        ("NVIDIA GeForce MX450", (7, 5)),
        ("NVIDIA T1000", (7, 5)),
        ("AMD Instinct MI50", (9, 0)),
        (None, (6, 1)),
    ],
)
def test_devices_without_tensor_cores(name: str | None, capability: tuple[int, int] | None) -> None:
    assert has_tensor_cores(name, capability) is False


@pytest.mark.parametrize(
    ("name", "capability"),
    [(None, None), ("", (9, 0)), ("", (7, 5)), ("AMD Radeon Graphics", (9, 0)), ("AMD Radeon Graphics", (11, 0))],
)
def test_devices_of_which_it_cannot_be_known(name: str | None, capability: tuple[int, int] | None) -> None:
    assert has_tensor_cores(name, capability) is None


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("Tesla T4", "nvidia"),
        ("AMD Instinct MI300X", "amd"),
        ("MI210", "amd"),
        ("B200", "nvidia"),
        ("", None),
        ("Intel Arc", None),
    ],
)
def test_vendor_is_read_from_the_name(name: str, vendor: str | None) -> None:
    assert vendor_of(name) == vendor


@pytest.mark.parametrize(
    ("name", "precision", "ratio"),
    [
        ("Tesla V100-SXM2-16GB", "fp16 autocast", 125 / 15.7),
        ("Tesla T4", "fp16 autocast", 65 / 8.1),
        ("NVIDIA A100-SXM4-40GB", "tf32", 8.0),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.7 / 66.9),
        ("NVIDIA GeForce RTX 3090", "bf16 autocast", 71 / 35.6),
        ("NVIDIA GeForce RTX 4090", "bf16 autocast", 2.0),
        ("AMD Instinct MI300X", "bf16 autocast", 1307.4 / 163.4),
    ],
)
def test_advice_follows_the_peaks(name: str, precision: str, ratio: float) -> None:
    advice = advise_precision(find_device(name))

    assert advice is not None
    assert advice.precision == precision
    assert advice.peak_ratio == pytest.approx(ratio)


def test_advice_for_devices_outside_the_table_names_no_ratio() -> None:
    assert advise_precision(None, (10, 3), "nvidia") == PrecisionAdvice("tf32", None)
    assert advise_precision(None, (8, 6), "nvidia") == PrecisionAdvice("bf16 autocast", None)
    assert advise_precision(None, (7, 0), "nvidia") == PrecisionAdvice("fp16 autocast", None)


def test_there_is_no_advice_where_nothing_is_known() -> None:
    assert advise_precision(None) is None
    assert advise_precision(None, (6, 0), "nvidia") is None
    assert advise_precision(None, (9, 0), "amd") is None


@given(
    st.text(max_size=80),
    st.none() | st.tuples(st.integers(0, 20), st.integers(0, 9)),
    st.sampled_from([None, "nvidia", "amd"]),
)
def test_any_name_is_accepted(name: str, capability: tuple[int, int] | None, vendor: str | None) -> None:
    assert has_tensor_cores(name, capability, vendor) in (True, False, None)
    device = find_device(name, capability, vendor)
    assert device is None or device.peaks_flops


@pytest.mark.parametrize(
    ("name", "operand", "tera_flops"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 19.5),
        ("NVIDIA A100-SXM4-80GB", "fp16", 78),
        ("NVIDIA A100-SXM4-80GB", "bf16", 39),
        ("NVIDIA A100-SXM4-80GB", "fp64", 9.7),
        ("NVIDIA H100 80GB HBM3", "bf16", 133.8),
        ("AMD Instinct MI210", "fp16", 45.2),
        ("AMD Instinct MI300X", "fp16", 163.4),
    ],
)
def test_vector_units_have_their_own_peaks(name: str, operand: str, tera_flops: float) -> None:
    device = find_device(name)

    assert device is not None
    assert device.vector_peak_flops(operand) == pytest.approx(tera_flops * 1e12)


@pytest.mark.parametrize(
    ("name", "operand", "tera_flops"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp32", 156),
        ("NVIDIA A100-SXM4-80GB", "fp64", 19.5),
        ("AMD Instinct MI300X", "fp32", 163.4),
        ("Tesla V100-SXM2-16GB", "fp32", None),
        ("Tesla V100-SXM2-16GB", "bf16", None),
        ("NVIDIA RTX A6000", "fp64", None),
    ],
)
def test_matrix_units_have_peaks_for_the_types_that_they_take(
    name: str, operand: str, tera_flops: float | None
) -> None:
    device = find_device(name)

    assert device is not None
    expected = None if tera_flops is None else pytest.approx(tera_flops * 1e12)
    assert device.matrix_peak_flops(operand) == expected


def test_attainable_rates_are_shares_of_the_peaks() -> None:
    device = find_device("NVIDIA H100 80GB HBM3")

    assert device is not None
    assert device.attainable_flops("bf16") == pytest.approx(0.79 * 989.4e12)
    assert device.attainable_flops("int4") is None
    assert device.attainable_bandwidth_bytes_per_s == pytest.approx(0.9 * 3350e9)
