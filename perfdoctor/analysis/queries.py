"""Queries over the events of a rank, narrowed step by step: ``rank.kernels.launched_by("aten::norm").in_steps()``.

Each method returns a smaller query; `|`, `&` and `-` combine queries of one table. The result is asked for `rows` (for
an edit), `time` (a claim), `time_ns` (a cost), `location` (the user's line) or its `len()`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, Self

import numpy as np

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.launching_ops import launching_ranges, marks_of_launching_ops, match_launching_ops
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.copies import copy_kinds_of
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import Calls, GpuItems, Ops, Table, Trace
from perfdoctor.trace.tables.rows import CallRows, GpuRows, OpRows


class FindsLines(Protocol):
    """What finds the line of some rows: `rank.places`."""

    def line_of_items(self, rows: BoolArray) -> SourceLocation | None:
        """The line that launched some GPU items."""

    def line_of_calls(self, rows: BoolArray) -> SourceLocation | None:
        """The line that makes some calls."""

    def line_of_ops(self, rows: BoolArray) -> SourceLocation | None:
        """The line of some ops."""


@frozen_dataclass(eq=False)
class QueryFacts:
    """The facts that the queries of one rank need.

    Attributes:
        trace: The trace.
        window: The analysed time: the steps, or all of the trace where there are none.
        classes: The classes of its kernels.
        places: Gives the account by place, made when a line is asked for.
    """

    trace: Trace
    window: Intervals
    classes: KernelClasses
    places: Callable[[], FindsLines]


@frozen_dataclass(eq=False)
class _Query:
    """Some rows of one table of a trace.

    Attributes:
        facts: The facts of the rank.
        mask: For each row of the table whether it is selected.
    """

    facts: QueryFacts
    mask: BoolArray

    @property
    def table(self) -> Table:
        """The table."""
        raise NotImplementedError

    def __len__(self) -> int:
        return int(np.count_nonzero(self.mask))

    def __and__(self, other: Self) -> Self:
        return self.where(other._mask_of(self))

    def __or__(self, other: Self) -> Self:
        return replace(self, mask=self.mask | other._mask_of(self))

    def __sub__(self, other: Self) -> Self:
        return self.where(~other._mask_of(self))

    def _mask_of(self, other: _Query) -> BoolArray:
        """The mask, for a query of the same table."""
        if type(self) is not type(other) or self.table is not other.table:
            raise TypeError(f"a {type(other).__name__} combines with queries of the same table alone")
        return self.mask

    def where(self, mask: BoolArray) -> Self:
        """Those for which a mask of the table holds too."""
        if mask.dtype != bool or len(mask) != len(self.mask):
            raise TypeError(f"a {type(self).__name__} takes a mask of {len(self.mask)} rows")
        return replace(self, mask=self.mask & mask)

    def named(self, pattern: str | re.Pattern[str]) -> Self:
        """Those in whose name the regular expression is found."""
        return self.where(self.facts.trace.match_rows(self.table, pattern))

    def in_steps(self) -> Self:
        """Those that start in the analysed steps; in a trace without steps, in the analysed time."""
        return self.during(self.facts.window)

    def during(self, intervals: Intervals) -> Self:
        """Those that start in a set of intervals."""
        return self.where(iv.contains(intervals, self.table.start_ns))

    @property
    def time(self) -> Intervals:
        """When any of them ran, within the analysed time: disjoint intervals, for a `Claim`."""
        table = self.table
        return iv.intersect(iv.union(table.start_ns[self.mask], table.end_ns[self.mask]), self.facts.window)

    @property
    def time_ns(self) -> int:
        """Length of `time` in all steps; `rank.per_step` makes it an amount a step."""
        return iv.total(self.time)


@frozen_dataclass(eq=False)
class GpuQuery(_Query):
    """Some GPU items: kernels, copies, sets."""

    @property
    def table(self) -> GpuItems:
        """`Trace.gpu`."""
        return self.facts.trace.gpu

    @property
    def rows(self) -> GpuRows:
        """The rows, for an edit."""
        return GpuRows(self.table, self.mask)

    def of_class(self, test: Callable[..., bool]) -> GpuQuery:
        """Kernels whose `KernelClass` passes the test."""
        return self.where(self.facts.classes.match_rows(test))

    def of_category(self, *categories: str) -> GpuQuery:
        """Kernels of some categories (`KernelClass.category`): "gemm", "elementwise", "communication"."""
        return self.of_class(lambda kernel: kernel.category in categories)

    def launched_by(self, op: str) -> GpuQuery:
        """Those that an op of exactly this name launched, itself or by an op inside it."""
        return self.where(match_launching_ops(self.facts.trace, re.compile(f"^{re.escape(op)}$")))

    def launched_in(self, range_pattern: str) -> GpuQuery:
        """Those launched while a range with a matching name was open on the launching thread."""
        return self.where(launching_ranges(self.facts.trace, range_pattern) >= 0)

    def copying(self, direction: str) -> GpuQuery:
        """Copies in one direction: "HtoD", "DtoH", "DtoD", "PtoP", "HtoH"."""
        if direction not in vocabulary.COPY_DIRECTIONS:
            raise ValueError(f"a direction is one of {', '.join(vocabulary.COPY_DIRECTIONS)}, not {direction!r}")
        kinds = copy_kinds_of(self.facts.trace)
        return self.where(kinds.direction == vocabulary.COPY_DIRECTIONS.index(direction))

    def pageable(self) -> GpuQuery:
        """Copies from or to pageable host memory, where the trace says so (AMD's does not)."""
        return self.where(copy_kinds_of(self.facts.trace).host_memory == vocabulary.PAGEABLE)

    def on_stream(self, stream: int) -> GpuQuery:
        """Those on one stream."""
        return self.where(self.table.stream == stream)

    @property
    def calls(self) -> CallQuery:
        """The calls that launched them."""
        mask = np.zeros(len(self.facts.trace.calls), bool)
        launches = self.table.call[self.mask]
        mask[launches[launches >= 0]] = True
        return CallQuery(self.facts, mask)

    @property
    def location(self) -> SourceLocation | None:
        """The line to which most of their time belongs; None where the recording does not tell."""
        return self.facts.places().line_of_items(self.mask)


@frozen_dataclass(eq=False)
class CallQuery(_Query):
    """Some runtime and driver calls."""

    @property
    def table(self) -> Calls:
        """`Trace.calls`."""
        return self.facts.trace.calls

    @property
    def rows(self) -> CallRows:
        """The rows, for an edit."""
        return CallRows(self.table, self.mask)

    @property
    def location(self) -> SourceLocation | None:
        """The line that makes most of them, by time; None where the recording does not tell."""
        return self.facts.places().line_of_calls(self.mask)


@frozen_dataclass(eq=False)
class OpQuery(_Query):
    """Some operators on the CPU."""

    @property
    def table(self) -> Ops:
        """`Trace.ops`."""
        return self.facts.trace.ops

    @property
    def rows(self) -> OpRows:
        """The rows."""
        return OpRows(self.table, self.mask)

    def called(self, name: str) -> OpQuery:
        """Those with exactly this name."""
        return self.named(f"^{re.escape(name)}$")

    def outermost(self) -> OpQuery:
        """Those inside no other op: what the program itself called."""
        return self.where(self.table.parent < 0)

    @property
    def kernels(self) -> GpuQuery:
        """The GPU items that they launched, themselves or by an op inside them."""
        found = marks_of_launching_ops(self.facts.trace, self.mask.view(np.uint8)) != 0
        return GpuQuery(self.facts, found)

    @property
    def location(self) -> SourceLocation | None:
        """The line to which most of their time belongs; None where the recording does not tell."""
        return self.facts.places().line_of_ops(self.mask)
