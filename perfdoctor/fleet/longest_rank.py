"""The rank of a job with the longest step, with its trace in memory: the one that a table is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfdoctor.analysis_options import AnalysisOptions
from perfdoctor.errors import InputError, UsageError
from perfdoctor.fleet.discover import TraceFile
from perfdoctor.fleet.rank_tasks import read_ranks
from perfdoctor.fleet.read_progress import ProgressTracker
from perfdoctor.rank import Rank


def read_longest_rank(
    files: Sequence[TraceFile],
    options: AnalysisOptions,
    tracker: ProgressTracker,
    visit: Callable[[Rank], object] | None = None,
) -> tuple[Rank, tuple[str, ...]]:
    """The rank with the longest step, and sentences that say which it is and what could not be read.

    The files are read one after the other, and one trace stays in memory.

    Args:
        files: The files.
        options: Which rank and which steps; the rules do not matter.
        tracker: Gets the progress.
        visit: Called with each rank while its trace is in memory.

    Raises:
        InputError: None of the files can be read: the reason of the first.
        UsageError: The options fit none of them.
    """
    longest: Rank | None = None
    count, failures = 0, []
    for index, file in enumerate(files):
        try:
            ranks = read_ranks(file, options, tracker.reader_callback(index))
        except InputError as error:
            if len(files) == 1:
                raise
            failures.append(error)
            continue
        finally:
            tracker.finish(index)
        for rank in ranks:
            count += 1
            if visit is not None:
                visit(rank)
            if longest is None or rank.mean_step_ns > longest.mean_step_ns:
                longest = rank
    if longest is None:
        raise failures[0] if failures else InputError(f"none of the traces is of rank {options.rank}")
    if options.steps != slice(None) and not longest.steps.count:
        raise UsageError("no steps are left: the trace has none, or --steps names none of them")
    notes = [f"could not be read: {error}" for error in failures]
    if count > 1:
        which = longest.trace.path if longest.rank is None else f"rank {longest.rank}"
        notes.insert(0, f"of {count} ranks this is {which}, which has the longest step")
    return longest, tuple(notes)
