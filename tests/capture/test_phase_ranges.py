"""Ranges of the phases: the same in NVTX and in the trace, balanced, and none while nothing is recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.phase_ranges import NvtxDomain, PhaseRanges  # noqa: E402

# The documented part of the nvtx package that is used; it writes every range to a file.
FAKE_NVTX = """
import os
class Domain:
    def __init__(self, name):
        self.file = open(os.environ["MARKED"], "ab", buffering=0)
    def get_event_attributes(self, message=None, color=None, category=None, payload=None):
        return message
    def push_range(self, attributes):
        self.file.write(f"<{attributes}>".encode())
    def pop_range(self):
        self.file.write(b"</>")
def get_domain(name):
    assert name == "perfdoctor"
    return Domain(name)
"""
BATCH = "<data></><forward></><zero_grad></><forward></><backward></><optimizer></>"


class FakeNvtxDomain:
    """Writes down the ranges, in place of NVTX."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, name: str) -> None:
        self.text += f"<{name}>"

    def pop(self) -> None:
        self.text += "</>"


@pytest.fixture
def nvtx(monkeypatch: pytest.MonkeyPatch) -> FakeNvtxDomain:
    domain = FakeNvtxDomain()
    monkeypatch.setattr(PhaseRanges, "_find_nvtx", lambda _: domain)
    return domain


def play(ranges: PhaseRanges, *phases: str) -> None:
    for phase in phases:
        ranges.end(ranges.begin(phase), phase)


def step(ranges: PhaseRanges, *phases: str) -> None:
    ranges.start(profiled=False)
    ranges.begin_step()
    play(ranges, *phases)
    ranges.end_step()


def test_a_forward_pass_lies_between_batch_or_zero_grad_and_backward(nvtx: FakeNvtxDomain) -> None:
    step(PhaseRanges(), "data", "zero_grad", "backward", "optimizer")
    assert nvtx.text == f"<step>{BATCH}</>"


def test_a_zero_grad_behind_the_optimizer_is_followed_by_no_forward_pass(nvtx: FakeNvtxDomain) -> None:
    step(PhaseRanges(), "data", "backward", "optimizer", "zero_grad")
    assert nvtx.text.endswith("<optimizer></><zero_grad></></>")


def test_the_second_network_of_a_gan_is_known_from_the_step_before(nvtx: FakeNvtxDomain) -> None:
    ranges = PhaseRanges()
    phases = ("data", "zero_grad", "backward", "optimizer", "zero_grad", "backward", "optimizer")
    step(ranges, *phases)
    assert nvtx.text.count("<forward>") == 2
    nvtx.text = ""
    step(ranges, *phases)
    assert nvtx.text.count("<optimizer></><zero_grad></><forward></><backward></>") == 1


def test_nothing_is_emitted_while_off(nvtx: FakeNvtxDomain) -> None:
    ranges = PhaseRanges()
    ranges.begin_step()
    play(ranges, "data", "backward", "optimizer")
    ranges.end_step()
    assert nvtx.text == ""


def test_off_in_the_middle_closes_all_and_a_late_end_closes_nothing(nvtx: FakeNvtxDomain) -> None:
    ranges = PhaseRanges()
    ranges.start(profiled=False)
    ranges.begin_step()
    depth = ranges.begin("optimizer")
    ranges.stop()
    assert nvtx.text == "<step><optimizer></></>"
    ranges.start(profiled=False)
    ranges.begin_step()
    ranges.end(depth, "optimizer")
    assert nvtx.text == "<step><optimizer></></><step>"


def test_a_failure_is_one_line_and_the_end_of_ranges(nvtx: FakeNvtxDomain, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_: str) -> None:
        raise OSError("gone")

    nvtx.push = broken  # type: ignore[method-assign]
    step(PhaseRanges(), "data", "backward")
    assert re.fullmatch(r"perfdoctor: no more ranges: OSError\('gone'\)\n", capsys.readouterr().err)


def test_the_real_package_takes_our_calls() -> None:
    pytest.importorskip("nvtx", reason="nvtx is not installed")
    domain = NvtxDomain()
    domain.push("step")
    domain.pop()


def test_nvtx_only_marks_and_writes_nothing(launcher: Any, capture_kit: dict[str, Any]) -> None:
    (launcher.folder / "nvtx.py").write_text(FAKE_NVTX)
    marked: Path = launcher.folder / "marked"
    env = {"PYTHONPATH": str(launcher.folder), "MARKED": str(marked)}
    recorded = launcher.record(capture_kit["TRAIN"] + 'print("loss", loss.item())\n', env=env, nvtx_only=True)
    assert (recorded.exit_code, recorded.stderr, recorded.notes) == (0, "", "")
    assert not recorded.out.exists()
    # 14 batches make 14 boundaries; the first step ends with the first of them.
    steps = marked.read_text().split("<step>")[1:]
    assert set(steps[:-1]) == {f"{BATCH}</>"}
    assert len(steps) == 14


def test_the_windows_hold_the_same_ranges(launcher: Any, capture_kit: dict[str, Any]) -> None:
    (launcher.folder / "nvtx.py").write_text(FAKE_NVTX)
    marked = launcher.folder / "marked_windows"
    env = {"PYTHONPATH": str(launcher.folder), "MARKED": str(marked)}
    recorded = launcher.record(capture_kit["TRAIN"], env=env)
    assert (recorded.exit_code, recorded.stderr) == (0, "")
    text = marked.read_text()
    recorded_steps = 3 + 2 + 2  # timing, evidence, and the warm-up step before each
    assert text.count("<step>") == recorded_steps
    assert len(re.findall("<[a-z]", text)) == text.count("</>")
    events = [e for e in recorded.trace("timing")["traceEvents"] if e["name"].startswith("perfdoctor::")]
    assert {e["cat"] for e in events} == {"user_annotation"}
    names = [e["name"] for e in sorted(events, key=lambda e: e["ts"])]
    once = ["perfdoctor::forward", "perfdoctor::forward", "perfdoctor::backward"]
    assert names == once * 4
