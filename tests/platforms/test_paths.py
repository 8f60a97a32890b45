"""Paths and line ends of other systems, wherever the traces are read."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

import perfdoctor
from perfdoctor.fleet.discover import find_traces
from perfdoctor.reporters.write_report import render_report
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import read
from perfdoctor.trace.io.remote import is_remote, protocol_of

SAMPLES = Path(__file__).parents[2] / "sample_traces"
PROGRAM = r"C:\Users\Ada Lovelace\job\train.py"


@pytest.mark.parametrize(
    "path", [r"C:\x.json", "C:/x.json", "c:x.json", "c://x.json", r"\\host\share\x.json", r"D:\a::b.json"]
)
def test_a_path_of_windows_is_no_url(path: str) -> None:
    assert not is_remote(path)
    assert protocol_of(path) == ""
    (found,) = find_traces([path])
    assert os.fspath(found.path) == os.fspath(Path(path))


@pytest.mark.parametrize("name", ["RANK3.JSON.GZ", "rank3.Json.gz", "Worker3.PT.TRACE.JSON"])
def test_a_trace_is_found_however_its_name_is_written(tmp_path: Path, name: str) -> None:
    content = TraceBuilder().step(0, 100).op("aten::mm", 5, 20).to_bytes()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    (found,) = find_traces([tmp_path])
    assert found.rank == 3
    assert len(read(found.path).ops) == 1


def waits_for_a_line() -> TraceBuilder:
    """Steps in which a line of a program on Windows waits for the GPU."""
    builder = TraceBuilder()
    for step in range(4):
        at = 10_000 * step
        builder.step(at, 10_000)
        frame = builder.frame(f"{PROGRAM}(17): train", at + 10, 9_900)
        builder.frame("<built-in method item of Tensor object at 0x7f00>", at + 1_100, 7_000, parent=frame)
        builder.op("aten::item", at + 1_100, 7_000)
        builder.sync("cudaStreamSynchronize", at + 1_200, 6_800)
        builder.kernel("void at::native::elementwise_kernel<4>(int)", at + 1_500, 6_400, launch_us=at + 1_000)
    return builder


def test_a_line_of_a_program_on_windows_is_named(tmp_path: Path) -> None:
    report = perfdoctor.analyze(waits_for_a_line().write(tmp_path / "t.json"))
    found = {(finding.location.file, finding.location.line) for finding in report.findings if finding.location}
    assert (PROGRAM, 17) in found
    assert f"{PROGRAM}:17" in render_report(report, ".md")


@pytest.mark.parametrize("compressed", [False, True])
def test_a_trace_with_line_ends_of_windows_is_read_as_any_other(tmp_path: Path, compressed: bool) -> None:
    text = gzip.decompress((SAMPLES / "dataloader-stall.json.gz").read_bytes()).decode()
    pretty = json.dumps(json.loads(text), indent=1)
    reports: list[Any] = []
    for ends in ("\n", "\r\n"):
        path = tmp_path / f"t.json{'.gz' * compressed}"
        content = pretty.replace("\n", ends).encode()
        path.write_bytes(gzip.compress(content, 1) if compressed else content)
        report = perfdoctor.analyze(path).to_dict()
        for outcome in report["outcomes"]:
            outcome["seconds"] = 0
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["findings"]


def test_settings_and_baselines_with_line_ends_of_windows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from perfdoctor.cli.main import main

    monkeypatch.chdir(tmp_path)
    trace = str(SAMPLES / "dataloader-stall.json.gz")
    assert main(["analyze", trace]) == 0
    assert "PD101" in capsys.readouterr().out
    Path("pyproject.toml").write_bytes(b'[tool.perfdoctor]\r\nignore = ["PD101"]\r\n')
    assert main(["analyze", trace, "--baseline", "base.json", "--update-baseline"]) == 0
    assert "PD101" not in capsys.readouterr().out
    base = Path("base.json")
    base.write_bytes(base.read_bytes().replace(b"\n", b"\r\n"))
    assert main(["analyze", trace, "--baseline", "base.json"]) == 0
