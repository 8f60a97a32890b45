"""The benchmark of `compare` measures what it says, on a small trace."""

from __future__ import annotations

import re

import pytest

from benchmarks import compare_speed
from perfdoctor.testing import TraceBuilder

pytestmark = pytest.mark.process


def test_it_prints_both_times_and_their_ratio(tmp_path, capsys):
    paths = []
    for name, us in (("before", 400), ("after", 500)):
        builder = TraceBuilder()
        for step in range(4):
            builder.step(1000 * step, 900).op("aten::mm", 1000 * step + 5, 20)
            builder.kernel("ampere_sgemm_128x64_nn", 1000 * step + 30, us, launch_us=1000 * step + 8)
        paths.append(str(builder.write(tmp_path / f"{name}.json.gz")))
    compare_speed.main([*paths, "--megabytes", "0.02", "--rounds", "1"])
    row = capsys.readouterr().out.splitlines()[-1]
    figures = [float(number) for number in re.findall(r"[0-9]+\.[0-9]+", row)]
    assert len(figures) == 6
    assert 0.5 < figures[4] < 3
