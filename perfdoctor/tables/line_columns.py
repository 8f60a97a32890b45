"""Lines of the user's code as names and columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.places.name_places import find_lines
from perfdoctor.rank import Rank
from perfdoctor.report.table import Column
from perfdoctor.tables.shared_columns import make_column
from perfdoctor.trace.arrays import Int32Array, Int64Array, IntArray

NO_LINE = "line not known"


@frozen_dataclass(eq=False)
class LinesOfWork:
    """The lines that some work belongs to.

    Attributes:
        locations: The lines, each once.
        code: For each piece of work the number of its line; NONE where it is not known.
    """

    locations: Sequence[SourceLocation]
    code: Int32Array

    def at(self, codes: Sequence[int]) -> list[SourceLocation | None]:
        """The lines of some numbers; None for NONE."""
        return [self.locations[each] if each >= 0 else None for each in codes]

    def names(self, codes: Sequence[int]) -> list[str]:
        """What the lines of some numbers are called: "train.py:12"."""
        return [NO_LINE if each is None else each.short for each in self.at(codes)]


def lines_of_work(rank: Rank, at_ns: Int64Array, thread: IntArray, op: IntArray) -> LinesOfWork:
    """The lines of some work of a rank, by when, on which thread and by which op it was launched."""
    places, code = find_lines(rank.trace, rank.forward_ops, at_ns, thread, op)
    return LinesOfWork([each.location for each in places if each.location is not None], code)


def line_columns(lines: LinesOfWork, codes: Sequence[int], *, by_line: bool = False) -> tuple[Column, ...]:
    """File, line and function of some lines; the last in the short form, too, where rows are `by_line`."""
    values = [(None, None, None) if each is None else (each.file, each.line, each.function) for each in lines.at(codes)]
    files, numbers, functions = zip(*values, strict=True) if values else ((), (), ())
    function = make_column("function", functions, "by line" if by_line else "")
    return make_column("file", files), make_column("line", numbers), function
