"""Devices: matched by whole words, never guessed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoctor.gpu import find_device, has_tensor_cores
from perfdoctor.gpu.device_table import read_table
from perfdoctor.gpu.devices import PrecisionAdvice, advise_precision, all_devices, similar_names, vendor_of


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
        ("NVIDIA L40", (8, 9), "bf16", 181),
        ("NVIDIA GB10", (12, 1), "bf16", 118.8),
        ("Tesla P100-PCIE-16GB", (6, 0), "fp32", 9.526),
        ("Tesla V100-DGXS-32GB", (7, 0), "fp16", 125.3),
        ("Tesla V100S-PCIE-32GB", (7, 0), "fp16", 130),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5), "fp16", 53.79),
        ("NVIDIA A10G", (8, 6), "bf16", 70),
        ("NVIDIA A40", (8, 6), "bf16", 149.7),
        ("NVIDIA A800-SXM4-80GB", (8, 0), "bf16", 312),
        ("NVIDIA GeForce RTX 3060", (8, 6), "fp32", 12.74),
        ("NVIDIA RTX 6000 Ada Generation", (8, 9), "bf16", 364.2),
        ("NVIDIA H800", (9, 0), "bf16", 989),
        ("NVIDIA H20-3e", (9, 0), "fp8", 296),
        ("NVIDIA GB300", (10, 3), "bf16", 2500),
        ("NVIDIA GeForce RTX 5080", (12, 0), "bf16", 112.6),
        ("AMD Instinct MI250X/MI250", (9, 0), "bf16", 181),
        ("AMD Instinct MI300A", (9, 4), "bf16", 980.6),
        ("AMD Instinct MI355X", (9, 5), "bf16", 2517),
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
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H800 NVL",
        "NVIDIA T400",
        "NVIDIA GeForce RTX 3090 Ti Laptop GPU",
        "NVIDIA GeForce RTX 2080 Ti MIG",
        "NVIDIA GeForce RTX 3070 Laptop GPU",
        "NVIDIA RTX A4500 Embedded GPU",
        "NVIDIA RTX 6000",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",  # sources disagree
        "NVIDIA RTX PRO 4000 Blackwell SFF Edition",
        "NVIDIA GeForce RTX 3050 Laptop GPU",
        "NVIDIA GeForce GTX 1650",  # 14 or 16 multiprocessors, GDDR5 or GDDR6
        "AMD Radeon RX 9070 GRE",
        "NVIDIA A800",
        "AMD Instinct MI308X",  # what sources say of its peaks differs by ten times
    ],
)
def test_unknown_names_have_no_device(name: str | None) -> None:
    assert find_device(name) is None


# The name as CUDA or HIP prints it, the multiprocessors and GiB of memory that it reports, and the row.
with Path(__file__).with_name("printed_names.csv").open(newline="", encoding="utf-8") as _file:
    PRINTED = [
        (row["printed"], int(row["sm_count"]), float(row["memory_gib"]), row["name"]) for row in csv.DictReader(_file)
    ]


@pytest.mark.parametrize(("printed", "sm_count", "memory_gib", "name"), PRINTED)
def test_rows_are_found_by_what_the_driver_prints(printed: str, sm_count: int, memory_gib: float, name: str) -> None:
    device = find_device(printed, memory_bytes=round(memory_gib * 2**30), sm_count=sm_count)

    assert device is not None
    assert device.name == name
    assert vendor_of(printed) == device.vendor
    assert has_tensor_cores(printed, device.compute_capability) is ("fp16" in device.peaks_flops)


def test_every_row_has_a_name_that_the_driver_prints() -> None:
    names = [device.name for device in all_devices()]

    assert len(set(names)) == len(names)
    assert {name for *_, name in PRINTED} == set(names)


@pytest.mark.parametrize(
    ("name", "memory_gib", "sm_count", "found"),
    [
        ("NVIDIA GeForce RTX 3060", 6, 30, None),  # sold as RTX 3060 3840SP
        ("NVIDIA GeForce RTX 3080", 20, None, None),
        ("NVIDIA GeForce RTX 3080", None, None, "NVIDIA GeForce RTX 3080 10GB"),
        ("RTX 3080 12GB", None, None, "NVIDIA GeForce RTX 3080 12GB"),  # as a user may name it
        ("Orin", None, None, "NVIDIA Jetson Orin NX 16GB"),
        ("Jetson AGX Orin 64GB", None, None, "NVIDIA Jetson AGX Orin 64GB"),
        ("NVIDIA H100 80GB HBM3", 10, 16, "NVIDIA H100 SXM5"),  # the name says it alone
    ],
)
def test_size_decides_between_parts_of_one_name(
    name: str, memory_gib: float | None, sm_count: int | None, found: str | None
) -> None:
    memory_bytes = None if memory_gib is None else round(memory_gib * 2**30)
    device = find_device(name, memory_bytes=memory_bytes, sm_count=sm_count)

    assert (device and device.name) == found


# FLOP per clock and multiprocessor (compute unit) of float16 on Tensor Cores with float32 accumulation, by chip: the
# whitepapers of Volta, Turing, GA100, GA102, AD102, GH100 and RTX Blackwell, and of CDNA 2 to 4. GeForce has half.
FP16_PER_CLOCK = {"7.0": 1024, "7.5": 1024, "8.0": 2048, "8.6": 1024, "8.7": 2048, "8.9": 1024, "9.0": 4096}
FP16_PER_CLOCK |= {"12.0": 1024, "12.1": 1024, "gfx908": 1024, "gfx90a": 1024, "gfx942": 2048, "gfx950": 4096}
FP32_PER_CLOCK = {"6.0": 128, "7.0": 128, "7.5": 128, "8.0": 128, "gfx908": 128, "gfx90a": 128}
HALF_RATE = ("NVIDIA L40",)  # by its datasheet; the L40S, of the same chip, has all
BEFORE_TENSOR_CORES = ("6.0", "6.1")
ROWS = {named.row["name"]: named.row for named in read_table()}


@pytest.mark.parametrize("name", ROWS)
def test_the_figures_of_a_row_agree(name: str) -> None:
    row = ROWS[name]
    value = {
        title.removesuffix("_tflops"): float(text) for title, text in row.items() if title.endswith("_tflops") and text
    }
    chip = row["compute_capability"] or row["gfx_arch"]
    is_half_rate, is_amd = "GeForce" in name or name in HALF_RATE, row["vendor"] == "amd"

    assert row["source"]
    assert row["checked"] != "recall"
    assert all(figure > 0 for figure in value.values())
    assert float(row["memory_bandwidth_gb_per_s"] or 1) > 0
    if chip in BEFORE_TENSOR_CORES:
        assert not {"tf32", "fp16", "bf16", "fp8"} & set(value)
        clocks = float(row["sm_count"]) * float(row["boost_clock_mhz"]) * 1e6 / 1e12
        assert value["fp32"] == pytest.approx(clocks * FP32_PER_CLOCK.get(chip, 256), rel=0.01)
        return
    assert value["fp16"] == pytest.approx(value.get("bf16", value["fp16"]) * (2 if chip == "gfx908" else 1), rel=0.001)
    assert ("bf16" in value) == (chip not in ("7.0", "7.5"))
    assert value.get("fp8", 2 * value["fp16"]) == pytest.approx(2 * value["fp16"], rel=0.02)
    if not is_amd and "tf32" in value:
        assert value["tf32"] == pytest.approx(value["fp16"] / 2, rel=0.02)
    if not row["boost_clock_mhz"] or not row["sm_count"]:
        return
    clocks = float(row["sm_count"]) * float(row["boost_clock_mhz"]) * 1e6 / 1e12
    fp16 = clocks * FP16_PER_CLOCK[chip] / (2 if is_half_rate else 1)
    # The Tensor Cores of Hopper's PCIe cards are specified at a lower clock than their other units.
    if value["fp16"] != pytest.approx(fp16, rel=0.05):
        assert chip == "9.0"
        assert 0.8 * fp16 < value["fp16"] < fp16
        assert value["fp32"] == pytest.approx(clocks * 256, rel=0.05)
    elif chip != "9.0":
        assert value["fp32"] == pytest.approx(clocks * FP32_PER_CLOCK.get(chip, 256), rel=0.05)


def test_bandwidth_is_unknown_only_where_it_cannot_be_known() -> None:
    unknown = {device.name for device in all_devices() if device.memory_bandwidth_bytes_per_s is None}

    # Of one name with faster and with slower memory, or in no source that was found, or in two that disagree.
    assert unknown == {
        "NVIDIA GeForce RTX 3060 Ti",
        "NVIDIA GeForce RTX 4070",
        "NVIDIA GeForce RTX 2070",
        "NVIDIA A800 PCIe 80GB",
        "NVIDIA GeForce GTX 1080",
        "NVIDIA GH200 (144GB HBM3e)",
    }


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RTX4090", "RTX 4090"),
        ("MI300", "MI300A"),
        ("NVIDIA A100", "A100 80GB PCIe"),
        ("H1000", "H100 80GB HBM3"),
        ("GeForce RTX 3055", "RTX 3050 6GB"),
        ("V100", "V100-DGXS-16GB"),
    ],
)
def test_names_near_a_wrong_one_are_found(name: str, nearest: str) -> None:
    names = similar_names(name)

    assert names[0] == nearest
    assert len(names) <= 3
    assert all(find_device(each) is not None for each in names)


@pytest.mark.parametrize("name", ["Abacus 3000", "", "nvidia", "AMD", "?"])
def test_there_may_be_no_name_near(name: str) -> None:
    assert similar_names(name) == []


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
