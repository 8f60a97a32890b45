from __future__ import annotations

import re

from benchmarks import export_speed
from perfdoctor.testing import TraceBuilder


def test_it_prints_a_row_for_each_form(tmp_path, capsys):
    builder = TraceBuilder().step(0, 1000)
    for number in range(20):
        builder.kernel("gemm", 50 + 40 * number, 30, launch_us=10 + 40 * number)
    trace = builder.write(tmp_path / "trace.json")
    export_speed.main([str(trace), "--megabytes", "0.02", "--rounds", "1"])
    _, _, analyze, plain, packed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\| analyze \| [\d.]+ \([\d.]+\) \| \d+ \| \| \|", analyze)
    for row, suffix in ((plain, "json"), (packed, "json.gz")):
        assert re.fullmatch(rf"\| export to \.{suffix} \| [\d.]+ \([\d.]+\) \| \d+ \| [\d.]+ \| \d+ \(\d+\) \|", row)
