"""What tables share: whose events count, GPU items in groups, and the columns of time that all tables have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from perfdoctor.analysis.host.locations import has_locations
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

_PER_S = 1e9  # from a nanosecond


@frozen_dataclass(eq=False)
class Source:
    """The recording that a table is made from, and how its times become those of a step.

    Attributes:
        rank: The rank whose events count.
        step_ns: The length of a step without the profiler; of the window where there are no steps.
        notes: What a reader must know of it.
        has_need: Whether what the table needs was recorded.
    """

    rank: Rank
    step_ns: int
    notes: tuple[str, ...] = ()
    has_need: bool = True

    @property
    def steps(self) -> int:
        """How many steps the window has; 1 where there are none."""
        return max(self.rank.steps.count, 1)


def choose_source(rank: Rank, need: Need | None = None) -> Source:
    """The rank itself; the evidence window of its capture, where only that recorded what a table needs.

    Recording shapes and stacks takes time on the CPU, so that the steps of an evidence window are longer: what takes
    a share of them takes the same share of the step that is analysed.
    """
    step_ns = rank.mean_step_ns
    if need is None or _HAS[need](rank.trace):
        return Source(rank, step_ns, (_describe_step(rank, step_ns),))
    evidence = rank.evidence
    if evidence is not None and _HAS[need](evidence.trace):
        return Source(evidence, step_ns, (_describe_step(rank, step_ns), _FROM_EVIDENCE))
    missing = explain_missing(_REQUIREMENT[need], rank.available_data)
    return Source(rank, step_ns, (_describe_step(rank, step_ns), missing), has_need=False)


def _describe_step(rank: Rank, step_ns: int) -> str:
    if not rank.steps.count:
        return f"no steps were found: times are of the whole trace, {format_time(step_ns)}"
    return f"times are of a step of {format_time(step_ns)}, the mean of {format_count(rank.steps.count, 'step')}"


_FROM_EVIDENCE = "the figures are of the capture's evidence window, which recorded shapes and stacks"


def _has_shapes(trace: Trace) -> bool:
    return bool((trace.ops.dims >= 0).any())


def _has_modules(trace: Trace) -> bool:
    return bool(trace.match_strings(trace.frames, vocabulary.MODULE_FRAME).any())


_HAS = {"shapes": _has_shapes, "lines": has_locations, "modules": _has_modules}
_REQUIREMENT: dict[Need, str] = {"shapes": "shapes", "lines": "stacks", "modules": "stacks"}


# --- columns ---------------------------------------------------------------------------------------------------------


def number_column(
    name: str,
    title: str,
    unit: Unit,
    values: FloatArray | IntArray,
    description: str = "",
    *,
    known: BoolArray | None = None,
    is_main: bool = True,
) -> Column:
    """A column of numbers: plain ints and floats, None where they are not finite or not `known`."""
    cells: Sequence[Any] = values.tolist()
    if values.dtype.kind == "f":
        known = np.isfinite(values) if known is None else known & np.isfinite(values)
    if known is not None and not known.all():
        cells = [cell if is_known else None for cell, is_known in zip(cells, known.tolist(), strict=True)]
    return Column(name, title, unit, tuple(cells), description, is_main)


def text_column(
    name: str, title: str, values: Sequence[Cell], description: str = "", *, is_main: bool = True
) -> Column:
    """A column of texts; an empty text becomes None."""
    return Column(name, title, "text", tuple(value or None for value in values), description, is_main)


def step_columns(source: Source, window_ns: Int64Array) -> tuple[Column, Column]:
    """`step_ns` and `share`, which stand behind the name of a row, from the recorded time in the window."""
    whole_ns = max(source.rank.window_ns, 1)
    step_ns = np.rint(window_ns / whole_ns * source.step_ns).astype(np.int64)
    return (
        number_column("step_ns", "time", "ns", step_ns, "Time a step, without the profiler."),
        number_column(
            "share",
            "share",
            "share",
            np.minimum(window_ns / whole_ns, 1.0),
            "Share of the step; what runs side by side counts for each.",
        ),
    )


def count_column(source: Source, counts: Int64Array) -> Column:
    """`count`, how often the rows ran in a step; None for what cannot be counted, such as Python."""
    per_step = np.round(counts / source.steps, 2)
    return number_column("count", "calls", "count", per_step, "How often it ran in a step.", known=counts > 0)


def window_columns(window_ns: Int64Array, counts: Int64Array, max_ns: Int64Array | None = None) -> tuple[Column, ...]:
    """`mean_ns`, `max_ns` where it is known, `window_count` and `window_ns`: figures of the window as recorded."""
    mean_ns, known = np.rint(window_ns / np.maximum(counts, 1)).astype(np.int64), counts > 0
    columns = [number_column("mean_ns", "mean", "ns", mean_ns, "The mean time of one, as recorded.", known=known)]
    if max_ns is not None:
        columns.append(number_column("max_ns", "longest", "ns", max_ns, "As recorded.", is_main=False))
    often, time = "How often it ran in the analysed time.", "Its recorded time in the analysed time."
    return (
        *columns,
        number_column("window_count", "in window", "count", counts, often, known=known, is_main=False),
        number_column("window_ns", "recorded", "ns", window_ns, time, is_main=False),
    )


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


def empty_table(name: str, by: str, rank: Rank, *notes: str) -> Table:
    """A table without rows; the notes say what to record for it."""
    return Table(name, by, (Column("name", by, "text", ()),), rank=rank.rank, notes=notes)
