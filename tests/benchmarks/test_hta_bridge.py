"""The benchmark of the bridge to HTA measures what it says, on a small trace."""

from __future__ import annotations

import re

import pytest

from benchmarks import hta_bridge
from perfdoctor.testing import TraceBuilder


def test_it_prints_both_times_and_their_ratio(tmp_path, capsys):
    pytest.importorskip("hta", reason="HTA is not installed")
    builder = TraceBuilder()
    for step in range(4):
        # Pandas refuses HTA's links where an index is wider than the correlation ids.
        builder.step(1000 * step, 900)
        builder.kernel("gemm", 1000 * step + 30, 50, launch_us=1000 * step + 8, correlation=100_000 + step)
    sample = builder.write(tmp_path / "sample.json.gz")
    hta_bridge.main([str(sample), "--megabytes", "0.02", "--rounds", "1"])
    row = capsys.readouterr().out.splitlines()[-1]
    rows = re.search(r"([0-9]+) and ([0-9]+) rows", row)
    assert rows is not None
    assert rows[1] == rows[2]
    assert float(re.findall(r"[0-9]+\.[0-9]", row)[-1]) > 0
