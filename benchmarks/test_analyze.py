"""`perfdoctor analyze` on a trace of 30 MB: the whole process, warm."""

from __future__ import annotations

import pytest

from benchmarks.measure import add_summary_line, measure_peak_bytes, run_perfdoctor
from perfdoctor.testing import TraceBuilder


@pytest.mark.parametrize("form", ["raw", "packed"])
def test_analyze(benchmark, traces, form, request):
    """Under 3 s."""
    path = getattr(traces, form)
    benchmark.pedantic(run_perfdoctor, args=("analyze", path, "--json"), rounds=7, warmup_rounds=1)
    if benchmark.stats is not None:
        size = traces.raw_bytes / 1e6
        add_summary_line(
            request, f"analyze, {size:.0f} MB {path.name}, {path.parent.name}: {benchmark.stats.stats.median:.2f} s"
        )


@pytest.mark.parametrize("form", ["raw", "packed"])
def test_peak_memory(benchmark, traces, form, request, tmp_path):
    """Peak memory less that for a trace of one kernel: under 8 times the text."""
    small = TraceBuilder().step(0, 100).kernel("ampere_sgemm_128x64_nn", 20, 50, launch_us=5).write(tmp_path / "1.json")
    path = getattr(traces, form)
    baseline = measure_peak_bytes("analyze", small, "--json")
    peak = benchmark.pedantic(measure_peak_bytes, args=("analyze", path, "--json"), rounds=1)
    ratio = (peak - baseline) / traces.raw_bytes
    benchmark.extra_info.update(peak_bytes=peak, baseline_bytes=baseline, ratio=round(ratio, 2))
    add_summary_line(
        request,
        f"peak memory, {path.name}, {path.parent.name}: ({peak / 1e6:.0f} - {baseline / 1e6:.0f}) MB / "
        f"{traces.raw_bytes / 1e6:.0f} MB = {ratio:.2f}",
    )
