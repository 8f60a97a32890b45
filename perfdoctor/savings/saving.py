"""Saving: what a fix is worth, and how that was found out. Claim: the time that it would free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from perfdoctor.trace.tables.intervals import EMPTY, Intervals, total

Basis: TypeAlias = Literal["measured", "replayed", "bounded", "unknown"]
BASES: tuple[Basis, ...] = ("measured", "replayed", "bounded", "unknown")


@dataclass(frozen=True, slots=True)
class Saving:
    """What a fix would save, in ns a step (of the window when there are no steps), and how that was found out.

    Attributes:
        low_ns, expected_ns, high_ns: At least, as expected, at most; each None where it is not known.
        basis: "measured": the fix was tried. "replayed": the trace was replayed without the fault. "bounded": between
            what can be proven and what cannot be exceeded. "unknown": no number, all None.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = ("low_ns", "expected_ns", "high_ns", "basis")

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: Basis = "unknown"

    def __post_init__(self) -> None:
        known = [v for v in (self.low_ns, self.expected_ns, self.high_ns) if v is not None]
        if any(type(v) is not int for v in known):
            raise TypeError(f"a saving is in whole nanoseconds or None, not {self}")
        if self.basis not in BASES:
            raise ValueError(f"the basis of a saving is one of {', '.join(BASES)}, not {self.basis!r}")
        if known != sorted(known) or any(v < 0 or v.bit_length() > 63 for v in known):
            raise ValueError(f"a saving needs 0 <= low <= expected <= high, not {self}")
        if self.basis == "unknown" and known:
            raise ValueError("a saving with a number needs a basis")

    def cap(self, most_ns: int) -> Saving:
        """The same saving where no figure exceeds `most_ns`."""
        low, expected, high = (
            None if ns is None else min(ns, most_ns) for ns in (self.low_ns, self.expected_ns, self.high_ns)
        )
        return Saving(low, expected, high, self.basis)

    @property
    def likely_ns(self) -> float:
        """What fixes are ordered by: the expected saving, the middle of the range where only bounds are known, or 0."""
        if self.expected_ns is not None:
            return self.expected_ns
        return ((self.low_ns or 0) + (self.high_ns or 0)) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The time of one rank that a fix would free: no nanosecond is promised twice.

    Attributes:
        intervals: The time, within the analysed window of `rank`.
        kernels: Whether it is kernel time, which becomes wall time only as far as the CPU waits for the GPU. Idle time
            is wall time already.
        rank: The rank whose time it is; None for the rank of the finding.
        exclusive_ns: Claimed time that no other finding can claim any more, so that its place was forgotten.
    """

    intervals: Intervals = field(default_factory=lambda: EMPTY)
    kernels: bool = False
    rank: int | None = None
    exclusive_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Length of the claimed time."""
        return total(self.intervals) + self.exclusive_ns
