"""What tables share: whose events count, GPU items in groups, and the columns of time that all tables have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from perfdoctor.analysis.host.locations import has_locations
from perfdoctor.data_rows import read_rows
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.rank import Rank
from perfdoctor.report.table import Cell, Column, Table, Unit
from perfdoctor.rules.requirements import explain_missing
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray, FloatArray, Int64Array, IntArray
from perfdoctor.trace.tables.distinct import distinct_rows
from perfdoctor.trace.tables.model import Trace
from perfdoctor.units import format_count, format_time

Need: TypeAlias = Literal["shapes", "lines", "modules"]

Values: TypeAlias = IntArray | FloatArray | Sequence[Cell]

_PER_S = 1e9  # from a nanosecond


_FROM_EVIDENCE = "the figures are of the capture's evidence window, which recorded shapes and stacks"
_HAS: Mapping[Need, Callable[[Trace], bool]] = {
    "shapes": lambda trace: bool((trace.ops.dims >= 0).any()),
    "lines": has_locations,
    "modules": lambda trace: bool(trace.match_strings(trace.frames, vocabulary.MODULE_FRAME).any()),
}
_REQUIREMENT: dict[Need, str] = {"shapes": "shapes", "lines": "stacks", "modules": "stacks"}


@frozen_dataclass(eq=False)
class Source:
    """The recording that a table is made from, how its times become those of a step, and the table's columns.

    Attributes:
        table: The name of the table.
        rank: The rank whose events count.
        number: The rank that the table is of: `rank` may be its evidence window.
        step_ns: The length of a step without the profiler; of the window where there are no steps.
        notes: What a reader must know of it.
        has_need: Whether what the table needs was recorded.
        kind: What its columns are declared by besides its name.
    """

    table: str
    rank: Rank
    number: int | None
    step_ns: int
    notes: tuple[str, ...] = ()
    has_need: bool = True
    kind: str = ""

    @property
    def steps(self) -> int:
        """How many steps the window has; 1 where there are none."""
        return max(self.rank.steps.count, 1)

    def column(self, name: str, values: Values, *, known: BoolArray | None = None, title: str = "") -> Column:
        """One of the columns of the table; see `make_column`."""
        return make_column(name, values, self.table, self.kind, known=known, title=title)

    def time(self, name: str, window_ns: IntArray | FloatArray, known: BoolArray | None = None) -> Column:
        """A column of recorded time in the window, as time a step without the profiler."""
        step_ns = np.rint(window_ns / max(self.rank.window_ns, 1) * self.step_ns).astype(np.int64)
        return self.column(name, step_ns, known=known)

    def count(self, counts: Int64Array) -> Column:
        """`count`, how often the rows ran in a step; None for what cannot be counted, such as Python."""
        return self.column("count", np.round(counts / self.steps, 2), known=counts > 0)

    def name_and_time(self, names: Sequence[Cell], title: str, window_ns: Int64Array) -> tuple[Column, ...]:
        """`name`, `step_ns` and `share`, which come first, from the recorded time in the window."""
        share = np.minimum(window_ns / max(self.rank.window_ns, 1), 1.0)
        name = self.column("name", names, title=title)
        return name, self.time("step_ns", window_ns), self.column("share", share)

    def build(
        self,
        by: str,
        title: str,
        names: Sequence[Cell],
        window_ns: Int64Array,
        counts: Int64Array,
        *columns: Column,
        max_ns: Int64Array | None = None,
        last: Sequence[Column] = (),
        notes: Sequence[str] = (),
        keep: IntArray | BoolArray | None = None,
    ) -> Table:
        """The table with the longest rows first: names, time and share; `columns`; figures of the window; `last`.

        `window_ns` and `counts` are as recorded in the window, and `keep` is not 0 for the rows that count.
        """
        mean_ns = np.rint(window_ns / np.maximum(counts, 1)).astype(np.int64)
        every = (
            *self.name_and_time(names, title, window_ns),
            *columns,
            self.column("mean_ns", mean_ns, known=counts > 0),
            *(() if max_ns is None else (self.column("max_ns", max_ns),)),
            self.column("window_count", counts, known=counts > 0),
            self.column("window_ns", window_ns),
            *last,
        )
        table = Table(self.table, by, every, rank=self.number, notes=(*self.notes, *notes))
        return (table if keep is None else table.take(np.flatnonzero(keep).tolist())).sort("step_ns")

    def build_groups(
        self, by: str, title: str, names: Sequence[Cell], groups: Groups, *columns: Column, notes: Sequence[str] = ()
    ) -> Table:
        """The same of groups of events, with the longest event of each."""
        time_ns, counts = groups.time_ns, groups.counts
        return self.build(by, title, names, time_ns, counts, *columns, max_ns=groups.max_ns, notes=notes)

    def empty(self, by: str, *notes: str) -> Table:
        """A table without rows; the notes say what to record for it."""
        return empty_table(self.table, by, self.number, *notes)


def choose_source(table: str, rank: Rank, need: Need | None = None, kind: str = "") -> Source:
    """The rank itself; the evidence window of its capture, where only that recorded what a table needs.

    Recording shapes and stacks takes time on the CPU, so that the steps of an evidence window are longer: what takes
    a share of them takes the same share of the step that is analysed.
    """
    step_ns, evidence = rank.mean_step_ns, rank.evidence
    if rank.steps.count:
        step = f"times are of a step of {format_time(step_ns)}, the mean of {format_count(rank.steps.count, 'step')}"
    else:
        step = f"no steps were found: times are of the whole trace, {format_time(step_ns)}"
    notes: tuple[str, ...] = (step,)
    source, has_need = rank, True
    if need is not None and not _HAS[need](rank.trace):
        has_need = evidence is not None and _HAS[need](evidence.trace)
        source = evidence if has_need and evidence is not None else rank
        notes = (step, _FROM_EVIDENCE if has_need else explain_missing(_REQUIREMENT[need], rank.available_data))
    return Source(table, source, rank.rank, step_ns, notes, has_need, kind)


# --- columns ---------------------------------------------------------------------------------------------------------


@cache
def _declared() -> dict[tuple[str, str], Column]:
    """The columns of columns.csv by what they are of and their names; read when the first table is made."""
    return {
        (row["of"], row["name"]): Column(
            row["name"], row["title"], cast(Unit, row["unit"]), (), row["description"], row["main"] == "yes"
        )
        for row in read_rows("tables/columns.csv")
    }


def make_column(
    name: str, values: Values, owner: str = "", kind: str = "", *, known: BoolArray | None = None, title: str = ""
) -> Column:
    """A column as columns.csv declares it, for `owner`, else `kind`, where these have one of their own.

    Numbers become plain ints and floats, None where they are not finite or not `known`; an empty text becomes None.
    `title` is that of what the table names.
    """
    declared = _declared()
    column = next(declared[of, name] for of in (owner, kind, "") if (of, name) in declared)
    cells: Sequence[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        known = np.isfinite(values) if known is None else known & np.isfinite(values)
    if column.unit == "text":
        cells = [value or None for value in cells]
    elif known is not None and not known.all():
        cells = [cell if is_known else None for cell, is_known in zip(cells, known.tolist(), strict=True)]
    return replace(column, title=title or column.title, values=tuple(cells))


# --- groups ----------------------------------------------------------------------------------------------------------


@frozen_dataclass(eq=False)
class Groups:
    """Events, such as GPU items of the window, in groups; a group is a row of a table.

    Attributes:
        items: Rows of a table of the trace.
        dur_ns: How long each item takes.
        group: For each item the number of its group, from 0 on without gaps.
        first: Of each group the place of one of its items in `items`.
    """

    items: Int64Array
    dur_ns: Int64Array
    group: Int64Array
    first: Int64Array

    @classmethod
    def by(cls, items: Int64Array, dur_ns: Int64Array, *keys: IntArray) -> Groups:
        """The items in groups with the same keys: columns of codes from -1 on, one for each item."""
        size = 1 + max((int(key.max(initial=0)) for key in keys), default=0)
        return cls(items, dur_ns, *distinct_rows(keys, size))

    @classmethod
    def of_gpu(cls, trace: Trace, items: Int64Array, *keys: IntArray) -> Groups:
        """The same for rows of `Trace.gpu`."""
        return cls.by(items, trace.gpu.end_ns[items] - trace.gpu.start_ns[items], *keys)

    def __len__(self) -> int:
        return len(self.first)

    def of_first(self, key: IntArray) -> list[int]:
        """For each group the key that all of its items have."""
        keys: list[int] = key[self.first].tolist()
        return keys

    @property
    def counts(self) -> Int64Array:
        """How many items each group has."""
        return np.bincount(self.group, minlength=len(self)).astype(np.int64)

    def sum(self, values: IntArray | FloatArray | BoolArray) -> FloatArray:
        """For each group the sum of a value of its items; exact for whole numbers up to 2**53."""
        return np.bincount(self.group, weights=values, minlength=len(self)).astype(np.float64)

    @property
    def time_ns(self) -> Int64Array:
        """The recorded time of each group."""
        return self.sum(self.dur_ns).astype(np.int64)

    @property
    def max_ns(self) -> Int64Array:
        """The longest item of each group."""
        longest = np.zeros(len(self), np.int64)
        np.maximum.at(longest, self.group, self.dur_ns)
        return longest

    def count_distinct(self, codes: IntArray) -> Int64Array:
        """For each group how many distinct codes its items have; -1 is none."""
        size = 1 + max(int(codes.max(initial=0)), len(self))
        _, first = distinct_rows((self.group, codes), size)
        first = first[codes[first] >= 0]
        return np.bincount(self.group[first], minlength=len(self)).astype(np.int64)

    def dominant_code(self, codes: IntArray) -> Int64Array:
        """For each group the code (-1 or more) with the most time among its items."""
        size = 1 + max(int(codes.max(initial=0)), len(self))
        pair, first = distinct_rows((self.group, codes), size)
        time_ns = np.bincount(pair, weights=self.dur_ns, minlength=len(first))
        group, code = self.group[first], codes[first].astype(np.int64)
        order = np.lexsort((code, time_ns, group))  # of each group the one with the most time comes last
        chosen = np.full(len(self), -1, np.int64)
        chosen[group[order]] = code[order]
        return chosen

    def dominant(self, names: Sequence[str], codes: IntArray) -> list[str | None]:
        """For each group the name of the code with the most time among its items; None for -1."""
        return [names[each] if each >= 0 else None for each in self.dominant_code(codes).tolist()]

    def rate(self, amounts: FloatArray) -> FloatArray:
        """For each group an amount of its items per second of those whose amount is known; NaN where none is."""
        known = ~np.isnan(amounts)
        time_ns = self.sum(np.where(known, self.dur_ns, 0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(time_ns > 0, self.sum(np.nan_to_num(amounts)) / time_ns * _PER_S, np.nan)

    def total(self, amounts: FloatArray) -> FloatArray:
        """For each group the sum of an amount of its items as far as it is known; NaN where it is of none."""
        known = ~np.isnan(amounts)
        return np.where(self.sum(known) > 0, self.sum(np.nan_to_num(amounts)), np.nan)


def empty_table(name: str, by: str, rank: int | None, *notes: str) -> Table:
    """A table without rows; the notes say what to record for it."""
    return Table(name, by, (Column("name", by, "text", ()),), rank=rank, notes=notes)
