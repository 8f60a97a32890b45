"""The ops that a program called one after the other, as PD210 looks through them, and the needless work among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

import numpy as np

from perfdoctor.analyzers._cpu_evidence import arguments_of, sizes_of
from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.rules import Int64Array, Rank, SourceLocation

Sizes: TypeAlias = tuple[tuple[int, ...], ...]
Remaining: TypeAlias = tuple[float, float | None, float]
"""The share of some time (0 to 1) that remains: at best, as expected (None where nobody knows), at worst."""


class Call(NamedTuple):
    """An op that the program called: its row in `trace.ops`, its name without the namespace, its arguments' sizes."""

    row: int
    name: str
    sizes: Sizes


class Work(NamedTuple):
    """The ops of a kind of needless work, which is a table of `remedies/texts/needless-work.toml`.

    Attributes:
        rows: The ops, rows of `trace.ops`.
        number: What the title names.
        place: The ops whose line is the one to change; None where that is the line of `rows`.
        remaining: What remains of it where the recording says that; None where the kind does.
        location: The line to change, where it is not that of an op.
        first: Where the same is computed before.
    """

    rows: Int64Array
    number: int
    place: Int64Array | None = None
    remaining: Remaining | None = None
    location: SourceLocation | None = None
    first: SourceLocation | None = None


class Sight(NamedTuple):
    """Calls that are needless work of one kind; the rest is as in `Work`."""

    kind: str
    calls: Iterable[Call]
    number: int
    place: tuple[Call, ...] = ()
    remaining: Remaining | None = None


def join_sights(sights: Iterable[Sight]) -> dict[str, Work]:
    """The work of each kind, with the largest number and share that remains of all places."""
    by_kind: dict[str, list[Sight]] = defaultdict(list)
    for sight in sights:
        by_kind[sight.kind].append(sight)
    works = {}
    for kind, found in by_kind.items():
        place = [call.row for sight in found for call in sight.place]
        works[kind] = Work(
            np.array(list(dict.fromkeys(call.row for sight in found for call in sight.calls)), np.int64),
            max(sight.number for sight in found),
            np.array(place, np.int64) if place else None,
            max((sight.remaining for sight in found if sight.remaining), key=lambda each: each[0], default=None),
        )
    return works


class Calls(Sequence[Call]):
    """The ops that the program itself called in a window with recorded sizes, in their order.

    A long recording has 100,000 of them, few of which are looked at: each is made when it is asked for.

    Attributes:
        rank: The window.
        rows: Their rows in `trace.ops`.
        step: The step of each.
    """

    def __init__(self, shaped: Rank) -> None:
        self.rank, self._trace = shaped, shaped.trace
        rows = ops_of_program(self._trace, shaped.window)
        self.rows: Int64Array = rows[~self._trace.match_rows(self._trace.ops, "^autograd::")[rows]]
        self.step = shaped.steps.at(self._trace.ops.start_ns[self.rows])
        self._codes = self._trace.ops.name[self.rows]
        self._names = {
            code: self._trace.strings[code].removeprefix("aten::") for code in np.unique(self._codes).tolist()
        }

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Call: ...

    @overload
    def __getitem__(self, at: slice) -> list[Call]: ...

    def __getitem__(self, at: int | slice) -> Call | list[Call]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self.rows)))]
        row = int(self.rows[at])
        return Call(row, self._names[int(self._codes[at])], sizes_of(self._trace.text(int(self._trace.ops.dims[row]))))

    def named(self, *names: str) -> list[int]:
        """The places of the calls with these names."""
        codes = [code for code, name in self._names.items() if name in names]
        return np.flatnonzero(np.isin(self._codes, codes)).tolist() if codes else []

    def after(self, at: int, count: int) -> list[Call]:
        """The next calls, at most so many."""
        return self[at + 1 : at + 1 + count]

    def behind(self, at: int, count: int, without: Collection[str]) -> list[Call]:
        """The next calls, at most so many, without those of some names."""
        others: Iterator[Call] = (call for i in range(at + 1, len(self)) if (call := self[i]).name not in without)
        return [call for call, _ in zip(others, range(count), strict=False)]

    def arguments(self, call: Call) -> list[int | None]:
        """The arguments of a call that are whole numbers, None for others; empty where they were not recorded."""
        return arguments_of(self._trace, call.row)
