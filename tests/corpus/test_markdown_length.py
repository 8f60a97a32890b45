"""Reports on real recordings with many findings stay short enough to be read whole."""

from __future__ import annotations

import pytest
from real_traces import analyze_once

from perfdoctor.reporters.write_report import render_report


@pytest.mark.corpus
@pytest.mark.parametrize(
    "name",
    [
        "pairs/a100-sam-9566500-fp32-fast",
        "traces/a100-nccl-config",
        "traces/a100-sam-fp32.json.gz",
        "traces/mi-merged-4pids.json.gz",
    ],
)
def test_the_markdown_report_has_less_than_200_lines(shared, name):
    assert len(render_report(analyze_once(shared / name), ".md").splitlines()) < 200
