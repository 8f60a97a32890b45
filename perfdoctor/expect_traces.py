"""`expect`, which the package exports, and an expectation that can print itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from perfdoctor.analysis_options import AnalysisOptions, check_device
from perfdoctor.api import PathLike, as_list, choose_files
from perfdoctor.errors import UsageError
from perfdoctor.expectation import Expectation as BaseExpectation
from perfdoctor.expectation import expect_on
from perfdoctor.fleet.discover import TraceFile, find_traces
from perfdoctor.fleet.rank_tasks import read_longest_rank
from perfdoctor.fleet.read_progress import Progress, ProgressTracker
from perfdoctor.gpu import find_device
from perfdoctor.installed_packages import find_version
from perfdoctor.reporters.write_expectation import print_expectation
from perfdoctor.units import format_duration

__all__ = ["Expectation", "expect"]


class Expectation(BaseExpectation):
    """What a step should take on a device; `perfdoctor.expectation.Expectation` describes its fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        low, high = (format_duration(ns) for ns in (self.step.low_ns, self.step.high_ns))
        return f"<perfdoctor.Expectation: {low} to {high} on {self.on}; expectation.print() shows it>"

    def print(self, *, color: bool | None = None) -> None:
        """Print the expectation to standard output, as `perfdoctor expect` does.

        Args:
            color: Whether to use colours; None means on terminals only.
        """
        print_expectation(self, color=color)


def expect(
    paths: PathLike | Sequence[PathLike],
    *,
    on: str | None = None,
    cpu_scale: float = 1.0,
    device: str | None = None,
    rank: int | None = None,
    steps: slice | None = None,
) -> Expectation:
    """What the step of a recording should take on another device, as a range with what it rests on.

    Args:
        paths: Where the traces are, as for `analyze`; of several ranks that with the longest step counts.
        on: The name of the other device, such as "H100"; None for the recording's own, whose range is what comparable
            kernels take.
        cpu_scale: How many times as long the CPU's work takes there.
        device: The name of the recording's device, where the trace lacks it or has a wrong one.
        rank: Which rank.
        steps: Which steps, as slice(2, 5); None for all.

    Returns:
        The expectation; times in ns, `.step.low_ns` to `.step.high_ns`.

    Raises:
        TraceError, InputError: The trace cannot be read, or has no work on a GPU whose peaks are known.
        UsageError: A device is not in the table, or `cpu_scale` is not above 0.
    """
    options = AnalysisOptions(device=device, rank=rank, steps=steps or slice(None))
    return expect_traces(find_traces(as_list(paths)), on, cpu_scale, options)


def expect_traces(
    found: Sequence[TraceFile],
    on: str | None,
    cpu_scale: float,
    options: AnalysisOptions,
    progress: Progress | None = None,
) -> Expectation:
    """The same as `expect`, of traces that were found already."""
    if not 0 < cpu_scale < float("inf"):
        raise UsageError(f"the CPU cannot take {cpu_scale:g} times as long; give a number above 0")
    check_device(options.device)
    check_device(on)
    files = choose_files(found, options.rank)
    of_rank, notes = read_longest_rank(files, options, ProgressTracker(files, progress))
    there = None if on is None else find_device(on)
    if on is not None and there is None:
        raise UsageError(f"'{on}' was calibrated, but its peaks are not known; add them to your own table of devices")
    made = expect_on(of_rank, there, find_version(), cpu_scale, notes)
    return Expectation(**{field.name: getattr(made, field.name) for field in fields(made)})
