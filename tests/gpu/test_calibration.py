"""Calibration: measured on this machine's CPU, stored, read back, and used."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoctor.cli.calibrate import format_overhead, format_rates, format_sweep
from perfdoctor.cli.main import main
from perfdoctor.errors import InputError
from perfdoctor.gpu import find_device
from perfdoctor.gpu.calibration import (
    FOLDER_VARIABLE,
    Calibration,
    SweepPoint,
    apply_calibration,
    calibration_path,
    find_calibration,
    store_calibration,
)
from perfdoctor.gpu.devices import PrecisionAdvice, advise_precision
from perfdoctor.gpu.fused_on_cpu import compile_multiply
from perfdoctor.gpu.measure_device import measure_in_rounds
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

FAST = "nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"
SWEEP = tuple(
    SweepPoint(k, max(1.0, k / 8) * 1e-3, k / max(1.0, k / 8) * 1e9, 8e9 / max(1.0, k / 8)) for k in (1, 4, 16, 64)
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "calibration"))
    return tmp_path / "calibration"


def measured(device: str = "NVIDIA H100 80GB HBM3", **flops: float) -> Calibration:
    return Calibration(device, "2026-01-31", flops or {"bf16": 700e12, "fp64": 55e12}, 3.0e12, 4e-6, SWEEP)


def rank_with_gemm(device: str) -> Rank:
    builder = TraceBuilder(device=device, capability=(9, 0), sm_count=132)
    bf16 = "c10::BFloat16"
    builder.op("aten::mm", 0, 50, shapes=[[4096, 4096], [4096, 4096]], types=[bf16, bf16])
    return Rank(builder.kernel(FAST, 100, 250, launch_us=1).trace())


def test_a_stored_calibration_is_found_by_the_name_of_the_device() -> None:
    path = store_calibration(measured())

    assert path.parent.is_dir()
    assert find_calibration("NVIDIA H100 80GB HBM3") == measured()
    assert find_calibration("nvidia h100 80gb hbm3") == measured()


@pytest.mark.parametrize("name", [None, "", "NVIDIA H100", "NVIDIA H100 80GB HBM3 MIG"])
def test_other_names_find_nothing(name: str | None) -> None:
    store_calibration(measured())

    assert find_calibration(name) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "perfdoctor.calibration/2"}', "\ufffd"])
def test_files_that_are_no_calibration_are_none(text: str) -> None:
    path = store_calibration(measured())
    path.write_text(text, encoding="utf-8")

    assert find_calibration("NVIDIA H100 80GB HBM3") is None


@pytest.mark.parametrize("rate", [0, -1, True, None, "fast", 1e999])
def test_rates_that_are_none_are_refused(rate: object) -> None:
    path = store_calibration(measured())
    stored = json.loads(path.read_text(encoding="utf-8"))
    stored["flops"]["bf16"] = rate
    path.write_text(json.dumps(stored), encoding="utf-8")

    assert find_calibration("NVIDIA H100 80GB HBM3") is None


def test_a_folder_that_cannot_be_written_is_one_sentence(folder: Path) -> None:
    folder.write_text("a file", encoding="utf-8")

    with pytest.raises(InputError, match=FOLDER_VARIABLE):
        store_calibration(measured())


def test_measured_rates_stand_beside_the_peaks_of_the_table() -> None:
    device = apply_calibration(find_device("NVIDIA H100 80GB HBM3"), measured(), (9, 0))

    assert device.peak_flops("bf16") == pytest.approx(989.4e12)
    assert device.attainable_flops("bf16") == 700e12
    assert device.attainable_flops("fp64_matrix") == 55e12
    assert device.attainable_flops("fp16") == pytest.approx(0.79 * 989.4e12)
    assert device.attainable_bandwidth_bytes_per_s == 3.0e12


def test_a_device_outside_the_table_gets_rates_and_no_peaks() -> None:
    device = apply_calibration(None, measured("NVIDIA RTX X999", fp32=50e12, tf32=100e12), (9, 9))

    assert device.peaks_flops == {}
    assert device.attainable_flops("tf32") == 100e12
    assert device.vector_peak_flops("fp32") is None
    assert device.compute_capability == (9, 9)
    assert advise_precision(device) == PrecisionAdvice("tf32", 2.0)


def test_analyses_use_the_measured_rates_and_say_so() -> None:
    before = rank_with_gemm("NVIDIA H100 80GB HBM3")
    assert before.notes == ()
    store_calibration(measured())
    after = rank_with_gemm("NVIDIA H100 80GB HBM3")

    assert after.bounds.efficiency[0] == pytest.approx(2 * 4096**3 / 700e12 / 250e-6)
    assert before.bounds.efficiency[0] == pytest.approx(2 * 4096**3 / (0.79 * 989.4e12) / 250e-6)
    assert before.account.mfu == after.account.mfu
    assert any("2026-01-31" in note for note in after.notes)


def test_an_unknown_device_has_bounds_once_it_is_measured() -> None:
    assert rank_with_gemm("NVIDIA RTX X999").bounds.assumed[0]
    store_calibration(measured("NVIDIA RTX X999", bf16=700e12))
    run = rank_with_gemm("NVIDIA RTX X999")

    assert not run.bounds.assumed[0]
    assert run.account.mfu is None
    assert run.verdicts.violations == ()


def test_the_sweep_says_where_maths_begins_to_bind() -> None:
    text = format_sweep(SWEEP)

    assert "memory binds up to 4 multiplications" in text
    assert "memory binds throughout" in format_sweep(SWEEP[:2])
    assert "no sweep" in format_sweep(())
    rows = [line for line in text.splitlines() if line.endswith(("▓", "█"))]
    assert [("▓" in row, "█" in row) for row in rows] == [(True, False)] * 2 + [(False, True)] * 2
    assert max(map(len, text.splitlines())) <= 80
    assert "4 multiplications cost as much as 1: memory binds" in text
    assert "maths from 16 on. An op that does less than 2 FLOP for each byte" in " ".join(text.split())
    assert "C compiler" not in text
    assert "Without a C compiler" in format_sweep(SWEEP, is_fused=False)


def test_small_ops_and_additions_stand_beside_what_the_field_quotes() -> None:
    text = format_overhead(replace(measured(), addition_s=25e-9))
    assert "small ops of PyTorch  250,000/s     280,000/s" in text
    assert "additions in Python   40,000,000/s  32,000,000/s" in text
    assert "products in bf16 do 2.8 billion operations" in " ".join(text.split())
    assert format_overhead(replace(measured(), launch_s=None)) == ""


@pytest.mark.process
def test_without_a_compiler_blocks_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("perfdoctor.gpu.fused_on_cpu.shutil.which", lambda _: None)
    assert compile_multiply(1) is None
    monkeypatch.setenv("CC", "false")  # a compiler that fails
    assert compile_multiply(1) is None


@pytest.mark.process
def test_the_compiled_multiplications_are_right() -> None:
    torch = pytest.importorskip("torch")
    multiply = compile_multiply(1)
    if multiply is None:
        pytest.skip("no C compiler")
    x = torch.rand(1024)
    before = x.clone()
    multiply(x, 3)()
    assert torch.equal(x, -before)


def test_the_table_compares_with_peaks_where_they_are_known() -> None:
    assert "71% of 989.4" in format_rates(measured(), find_device("NVIDIA H100 80GB HBM3"))
    assert "n/a" in format_rates(measured("NVIDIA RTX X999"), None)


@pytest.fixture
def any_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever varies is stable: other tests may run beside this one."""
    for module in ("calibration", "measure_device"):
        monkeypatch.setattr(f"perfdoctor.gpu.{module}.MAX_SPREAD", 1e9)


@pytest.mark.process
@pytest.mark.usefixtures("any_spread")
def test_this_cpu_can_be_measured(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")

    assert main(["calibrate", "--cpu", "--seconds", "0.3", "-o", str(tmp_path / "c.json")]) == 0
    printed = capsys.readouterr().out
    (stored,) = folder.iterdir()
    written = json.loads(stored.read_text(encoding="utf-8"))
    assert written == json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert find_calibration(written["device"]) is not None
    assert stored == calibration_path(written["device"])
    assert written["flops"]["fp32"] > 1e8
    assert written["bandwidth_bytes_per_s"] > 1e7
    assert 0 < written["launch_s"] < 1e-2
    assert [point["k"] for point in written["sweep"]][:2] == [1, 2]
    assert written["device"] in printed
    assert set(written["spread"]) >= {"fp32", "copy", "launch"}
    assert "spread" in printed


def rounds_of(*seconds: float) -> Callable[[], float]:
    """A measurement that gives one figure after the other, and the last one for ever."""
    left = list(seconds)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def test_what_varies_is_measured_again_until_three_rounds_agree() -> None:
    said: list[str] = []
    times, spread = measure_in_rounds(
        {
            "calm": rounds_of(1.0, 1.02, 1.05),
            "falling": rounds_of(3.0, 2.0, 1.0),
            "wild": rounds_of(1, 2, 1, 2, 1, 2, 1, 2, 1),
        },
        said.append,
    )
    assert times == {"calm": 1.02, "falling": 1.0, "wild": 1}
    assert spread == {"calm": pytest.approx(0.05 / 1.02), "falling": 0.0, "wild": 1.0}
    assert said[0] == "calm, falling, wild; round 1 of 3"
    assert said[3] == "falling, wild again, because it varies; round 4 of 9"
    assert said[-1] == "wild again, because it varies; round 9 of 9"
    assert len(said) == 9


def test_what_torch_does_not_have_is_left_out() -> None:
    def fail() -> float:
        raise NotImplementedError

    assert measure_in_rounds({"fp8": fail, "fp32": rounds_of(1.0)}, lambda _: None) == ({"fp32": 1.0}, {"fp32": 0.0})


def calibrate_as(monkeypatch: pytest.MonkeyPatch, *options: str, **spread: float) -> int:
    """Run the command with a measurement that has this spread."""
    found = replace(measured(), flops={"fp64": 1e12, "bf16": 2e12}, spread=spread)
    monkeypatch.setattr("perfdoctor.gpu.measure_device.measure_device", lambda **_: found)
    return main(["calibrate", *options])


def test_what_varies_is_shown_and_not_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate_as(monkeypatch, fp64=0.02, bf16=0.31, copy=0.101, launch=0.1) == 0
    printed = capsys.readouterr().out
    assert "31.0%" in printed
    assert "and not stored, because it varied by more than 10%: bf16 by 31%, copy by 10%" in printed
    stored = find_calibration("NVIDIA H100 80GB HBM3")
    assert stored is not None
    assert (dict(stored.flops), stored.bandwidth_bytes_per_s, stored.launch_s) == ({"fp64": 1e12}, None, 4e-6)
    assert stored.spread == {"fp64": 0.02, "launch": 0.1}


def test_where_everything_varies_nothing_is_stored_and_the_exit_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    wild = {"fp64": 0.2, "bf16": 0.31, "copy": 0.5, "launch": 0.11}
    assert calibrate_as(monkeypatch, **wild) == 1
    assert "nothing was stored: every rate varied by more than 10 %" in capsys.readouterr().err
    assert not folder.exists()
    assert calibrate_as(monkeypatch, "--no-store", **wild) == 0
    assert "not to be relied on, because it varied" in capsys.readouterr().out


def test_files_of_earlier_versions_have_no_spread() -> None:
    path = store_calibration(measured())
    old = json.loads(path.read_text(encoding="utf-8"))
    del old["spread"]
    path.write_text(json.dumps(old), encoding="utf-8")
    assert find_calibration("NVIDIA H100 80GB HBM3") == measured()
    assert "n/a" in format_rates(measured(), None)


@pytest.mark.process
def test_the_plot_is_written_as_a_page_and_nothing_stored_when_nobody_wants_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "c.html"
    assert main(["calibrate", "--cpu", "--seconds", "0.1", "--no-store", "-o", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert "arithmetic intensity" in page
    assert page.count("<circle") >= 4
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page.replace("http-equiv", "")  # it needs no network
    printed = capsys.readouterr().out
    assert printed
    assert "stored" not in printed
    assert not folder.exists()


@pytest.mark.parametrize("options", [["--seconds", "0"], ["--seconds", "nan"], ["-o", "plot.png"]])
def test_bad_options_are_refused_before_anything_is_measured(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--cpu", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
