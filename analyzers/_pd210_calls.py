"""The ops that a program called one after the other, as PD210 looks through them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

import numpy as np

from perfdoctor.analyzers._cpu_evidence import sizes_of
from perfdoctor.analyzers._cpu_ops import ops_of_program
from perfdoctor.rules import Int64Array, Rank

Sizes: TypeAlias = tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """An op that the program called: its row in `trace.ops`, its name without the namespace, its arguments' sizes."""

    row: int
    name: str
    sizes: Sizes


class Calls(Sequence[Call]):
    """The ops that the program itself called in a window with recorded sizes, in their order.

    A long recording has 100,000 of them, few of which are looked at: each is made when it is asked for.

    Attributes:
        rows: Their rows in `trace.ops`.
    """

    def __init__(self, shaped: Rank) -> None:
        self._trace = shaped.trace
        rows = ops_of_program(self._trace, shaped.window)
        self.rows: Int64Array = rows[~self._trace.match_rows(self._trace.ops, "^autograd::")[rows]]
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

    def behind(self, at: int, count: int, without: Collection[str]) -> list[Call]:
        """The next calls, at most so many, without those of some names."""
        others: Iterator[Call] = (call for i in range(at + 1, len(self)) if (call := self[i]).name not in without)
        return [call for call, _ in zip(others, range(count), strict=False)]
