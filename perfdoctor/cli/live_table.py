"""How the ranks of a running program are doing, as a table of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfdoctor.reporters.sparkline import draw_sparkline
from perfdoctor.units import format_bytes, format_time

if TYPE_CHECKING:
    from rich.console import RenderableType

    from perfdoctor.capture.live_state import JobState, RankState

# Letters of the line of step times: with all other columns the table has 80.
_SPARKLINE_WIDTH = 18
_UNKNOWN = "n/a"
_STYLES = {"ended": "dim", "silent": "red", "recording": "cyan"}


def draw_job(name: str, job: JobState) -> RenderableType:
    """The table, and a sentence on each rank that is not as the others or as before.

    Args:
        name: Of the capture.
        job: The state of its ranks.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    heads = ("rank", "steps", "a step", "of late", "loader", "GPU", "GPU mem", "host mem")
    for head in heads:
        table.add_column(head, justify="left" if head == "of late" else "right", no_wrap=True)
    for rank in job.ranks:
        table.add_row(*_cells(rank), style=_STYLES.get(rank.state))
    title = Text(f"{name}: {_count_states(job)}", style="bold")
    return Group(title, table, *(Text(sentence) for sentence in describe_job(job)))


def _cells(rank: RankState) -> tuple[str, ...]:
    def shown(value: Any, text: str) -> str:
        return _UNKNOWN if value is None else text

    share = None
    if rank.loader_wait_ns is not None and rank.step_ns:
        share = rank.loader_wait_ns / rank.step_ns
    return (
        str(rank.rank),
        f"{rank.step:,}",
        shown(rank.step_ns, format_time(rank.step_ns or 0)),
        draw_sparkline(rank.recent_ns, _SPARKLINE_WIDTH),
        shown(share, f"{share or 0:.0%}"),
        shown(rank.gpu_percent, f"{rank.gpu_percent}%"),
        shown(rank.gpu_memory_bytes, format_bytes(rank.gpu_memory_bytes or 0)),
        shown(rank.host_bytes, format_bytes(rank.host_bytes or 0)),
    )


def _count_states(job: JobState) -> str:
    states = [rank.state for rank in job.ranks]
    counts = [(states.count(state), state) for state in ("running", "recording", "silent", "ended")]
    found = [f"{count} {'rank' if count == 1 else 'ranks'} {state}" for count, state in counts if count]
    return ", ".join(found) or "no rank has made a step yet"


def describe_job(job: JobState) -> Iterator[str]:
    """A sentence for each thing that somebody who watches should know."""
    for rank in job.ranks:
        if rank.state == "silent" and rank.silent_s is not None:
            yield f"rank {rank.rank} has made no step for {rank.silent_s:.0f} s"
        drift = rank.drift
        if drift is not None:
            how = "get longer and longer" if drift.kind == "ramp" else "are longer"
            times = f"{format_time(drift.after)}, {format_time(drift.before)} before"
            yield f"rank {rank.rank}: steps {how} since about step {drift.began:,}: {times}"
    if job.slowest_rank is not None:
        busy = {rank.rank: rank.busy_ns for rank in job.ranks if rank.busy_ns is not None}
        others = sorted(value for number, value in busy.items() if number != job.slowest_rank)
        yield (
            f"rank {job.slowest_rank} is the slowest: busy for {format_time(busy[job.slowest_rank])} of a step, the "
            f"others for {format_time(others[len(others) // 2])}"
        )
