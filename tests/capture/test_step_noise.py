"""Programs whose steps differ, really recorded and analysed: a cause is named where it was seen, noise is none."""

from __future__ import annotations

import os
from typing import Any

import pytest

import perfdoctor
from perfdoctor.report.report import Report

pytest.importorskip("torch")

# A step takes some milliseconds of one thread's work: the number of cores plays no part.
PROGRAM = """
import os, time, torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(128, 256)
large = torch.randn(1000, 1000)
def backward(count=1):
    for _ in range(count):
        (net(x).square().mean() / count).backward()
for number in range(80):
    optimizer.zero_grad()
    {step}
    optimizer.step()
    {after}
"""
SAVE = "if number % 10 == 9: torch.save([torch.randn(1024, 8192)], 'weights.pt')"


def analyze(launcher: Any, step: str, after: str = "pass") -> Report:
    """The report of three rules on a recorded program."""
    path = launcher.write(PROGRAM.format(step=step, after=after))
    recorded = launcher.run(path.name)
    assert recorded.exit_code == 0, recorded.stderr
    return perfdoctor.analyze(recorded.out, select=["PD001", "PD003", "PD113"])


def titles(report: Report, rule: str = "PD003") -> str:
    return "\n".join(f"{each.severity} {each.title}" for each in report.findings if each.rule == rule)


def test_checkpoints_are_named(launcher: Any) -> None:
    report = analyze(launcher, "backward()", SAVE)
    found = titles(report, "PD113")
    assert "Saving checkpoints" in found, found
    assert " each in " in found
    assert "checkpoint" not in titles(report)  # and reported by one rule


def test_without_a_checkpoint_none_is_named(launcher: Any) -> None:
    """On a busy machine nothing may be said: the slow steps were preempted, too."""
    report = analyze(launcher, "backward()", "if number % 10 == 9: time.sleep(0.1)")
    found = titles(report)
    assert "checkpoint" not in found
    assert "of the run take up to" not in found or "they wait, without more CPU time" in found, found


def machine_was_shared(report: Any) -> bool:
    """Whether other programs took the cores from the recorded steps, or could have: the tests run beside each other."""
    said = any("other programs" in warning for trace in report.traces for warning in trace.warnings)
    return said or os.getloadavg()[0] > 1.5


def test_more_micro_batches_are_no_slow_steps(launcher: Any) -> None:
    report = analyze(launcher, "backward(12 if number % 10 == 9 else 1)")
    found = titles(report)
    assert "instead of 1" in found or not found or machine_was_shared(report), found
    assert not any(each.severity in ("medium", "high") for each in report.findings)


def test_accumulation_that_ramps_up_blames_neither_the_profiler_nor_growth(launcher: Any) -> None:
    report = analyze(launcher, "backward(1 if number < 5 else 6)")
    assert "keep growing" not in titles(report)
    # The windows hold one and six micro-batches: without that a step seems to take six times its usual length.
    slowed = [each.title for each in report.findings if each.rule == "PD001"]
    assert not any(float(title.split(" times")[0].split()[-1]) > 3 for title in slowed), slowed


def test_an_early_sample_is_said_to_be_one(launcher: Any) -> None:
    report = analyze(launcher, "backward()", "if number > 25: torch.mm(large, large)")
    if machine_was_shared(report):
        pytest.skip("the machine is busy")
    (warning,) = [each for trace in report.traces for each in trace.warnings if "represent" in each]
    assert "the recorded steps do not represent the run" in warning
    skip = int(warning.split("--skip ")[1].split()[0])
    assert 20 < skip < 60


def test_even_steps_are_fine(launcher: Any) -> None:
    report = analyze(launcher, "backward()")
    assert not any(each.severity in ("medium", "high") for each in report.findings), titles(report)
    if machine_was_shared(report):
        return
    assert not any("represent" in warning for trace in report.traces for warning in trace.warnings)
