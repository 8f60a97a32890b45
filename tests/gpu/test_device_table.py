"""The user's own file of devices: its rows come first, and a file that cannot be used is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoctor.errors import UsageError
from perfdoctor.gpu import find_device
from perfdoctor.gpu.device_table import FILE_VARIABLE, read_table, user_devices_path
from perfdoctor.gpu.devices import similar_names, vendor_of

HEADER = "name,vendor,compute_capability,sm_count,fp16_tflops,fp32_tflops,memory_bandwidth_gb_per_s,match,source"


@pytest.fixture
def own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "devices.csv"))
    return tmp_path / "devices.csv"


def test_a_device_of_the_users_own_is_found(own_file: Path) -> None:
    own_file.write_text(f"{HEADER}\nACME G1,nvidia,9.9,12,100,10,,,measured here\n")
    device = find_device("ACME G1 Turbo", (9, 9))

    assert device is not None
    assert (device.name, device.sm_count, device.source) == ("ACME G1", 12, "measured here")
    assert device.peak_flops("fp16") == pytest.approx(100e12)
    assert device.memory_bandwidth_bytes_per_s is None
    assert vendor_of("ACME G1") == "nvidia"
    assert similar_names("ACME G2") == ["ACME G1"]
    assert find_device("NVIDIA H100 80GB HBM3") is not None


def test_a_row_of_the_users_own_replaces_ours(own_file: Path) -> None:
    own_file.write_text(
        f"\ufeff{HEADER}\n\nH100 at 500 W,nvidia,9.0,132,700,50,3350, H100 80GB HBM3 | GH1 ,power cap\n"
    )

    for name in ("NVIDIA H100 80GB HBM3", "GH1"):
        device = find_device(name)
        assert device is not None
        assert device.peak_flops("fp16") == pytest.approx(700e12)
    other = find_device("NVIDIA H100 PCIe")
    assert other is not None
    assert other.peak_flops("fp16") == pytest.approx(756e12)


def test_a_changed_file_is_read_again(own_file: Path) -> None:
    own_file.write_text(f"{HEADER}\nACME G1,nvidia,,,100,,,,x\n")
    assert find_device("ACME G1") is not None
    own_file.write_text(f"{HEADER}\nACME G2,nvidia,,,100,,,,x\n")
    assert find_device("ACME G1") is None


def test_without_a_file_there_is_our_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    assert user_devices_path().name == "devices.csv"
    assert {named.row["vendor"] for named in read_table()} == {"nvidia", "amd"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the first line has no column 'name'"),
        ("name,vendor\nA,nvidia\n", "the first line has no column 'source'"),
        ("name,vendor,source,speed\nA,nvidia,x,9\n", "devices have no column 'speed'; they have match, name, vendor"),
        ("name,vendor,source\nA,nvidia\n", "line 2: 2 values for 3 columns"),
        ("name,vendor,source\nA,nvidia,x\n,nvidia,x\n", "line 3: name is empty"),
        ("name,vendor,source\nA,intel,x\n", "line 2: vendor cannot be 'intel'; it must be nvidia or amd"),
        (
            "name,vendor,source,fp16_tflops\nA,amd,x,fast\n",
            "fp16_tflops cannot be 'fast'; it must be a positive number",
        ),
        ("name,vendor,source,fp16_tflops\nA,amd,x,0\n", "fp16_tflops cannot be '0'"),
        ("name,vendor,source,fp16_tflops\nA,amd,x,inf\n", "fp16_tflops cannot be 'inf'"),
        ("name,vendor,source,fp16_tflops\nA,amd,x,nan\n", "fp16_tflops cannot be 'nan'"),
        ("name,vendor,source,compute_capability\nA,nvidia,x,sm_90\n", "it must be two numbers, such as 9.0"),
        ("name,vendor,source,achievable_gemm_fraction\nA,nvidia,x,80\n", "it must be above 0 and at most 1"),
        ('name,vendor,source\n"A,nvidia,x\n', "line 2: unexpected end of data"),
        (b"\xff\xfe\x00", "cannot be read as a table of devices"),
    ],
)
def test_a_file_that_is_no_table_is_refused(own_file: Path, text: str | bytes, sentence: str) -> None:
    own_file.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(UsageError, match=r"devices\.csv") as refused:
        find_device("NVIDIA H100 80GB HBM3")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("own_file")
def test_a_file_that_is_named_must_be_there() -> None:
    with pytest.raises(UsageError, match=f"there is no such file of devices, which {FILE_VARIABLE} names"):
        find_device("NVIDIA H100 80GB HBM3")


def test_no_link_is_a_figure_too(own_file: Path) -> None:
    own_file.write_text("name,vendor,source,link_gb_per_s\nACME G1,amd,x,0\n")
    device = find_device("ACME G1")

    assert device is not None
    assert device.link_bytes_per_s == 0
