"""The whole run in one line: a sparkline of its steps, their lengths, and since when they are slower."""

from __future__ import annotations

from perfdoctor.reporters.clean_text import shorten_end
from perfdoctor.reporters.sparkline import draw_sparkline
from perfdoctor.run_watch.run_series import RunSeries
from perfdoctor.units import format_duration


def describe_run(run: RunSeries, width: int, *, unicode: bool) -> str:
    """Such as `Run ▁▁▂▃▅▇█ 1.6 to 8.8 ms, 1,500 steps, slower from step 51 on`, in `width` columns.

    The highest bar is the longest level of the run, and no bar is 0: what varies by a little looks as if it did.
    """
    longest_ns = max(*run.levels_ns, 1)
    line = draw_sparkline(run.levels_ns, len(run.levels_ns), unicode=unicode)
    slower = "" if run.slower_from is None else f", slower from step {run.slower_from:,} on"
    lengths = f"{format_duration(min(run.levels_ns))} to {format_duration(longest_ns)}"
    return shorten_end(f"Run {line} {lengths}, {run.steps:,} steps{slower}", width)
