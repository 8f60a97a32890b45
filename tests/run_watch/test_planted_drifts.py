"""Programs that really drift, recorded by `perfdoctor run`: cause and line are found, and the twin is quiet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.drift.__main__ import check
from benchmarks.drift.programs import PROGRAMS

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forks")]


# Half as many as the benchmark makes: its steps grow to 20 times their length, which takes a minute.
FEWER_STEPS = {"moments": 450}
SAYS = {
    "graph": r"graphs of earlier steps \(.*, as a step runs [\d,]+ of .* early and [\d,]+ late\)",
    "dataset": "",
    "moments": r"\(std at moments\.py:\d+ takes .*, as its input grew from \[\d+, 256\] to \[\d{4,}, 256\]\)",
}


@pytest.mark.parametrize("name", SAYS)
def test_a_planted_drift_is_found_with_its_line(name: str, tmp_path: Path) -> None:
    planted = PROGRAMS[name]._replace(steps=FEWER_STEPS.get(name, PROGRAMS[name].steps))
    outcome = check(name, planted, tmp_path)
    assert outcome.is_right, outcome
    assert re.search(SAYS[name], outcome.title), outcome
    assert outcome.twin_is_quiet
    assert outcome.is_same, "the program prints the same with and without perfdoctor"
