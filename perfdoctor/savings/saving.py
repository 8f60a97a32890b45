"""Saving: how much a fix saves, and how that is known. Claim: the time that the fix would free."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, TypeAlias

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.tables.intervals import EMPTY, Intervals, total

Basis: TypeAlias = Literal["measured", "replayed", "bounded", "unknown"]
BASES: tuple[Basis, ...] = ("measured", "replayed", "bounded", "unknown")


@frozen_dataclass
class SavingAlone:
    """What a fix would save by itself, with no other fix done: at least, as expected, at most; None where not known."""

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None

    def __post_init__(self) -> None:
        _check_figures(self, self.low_ns, self.expected_ns, self.high_ns)

    @property
    def likely_ns(self) -> float:
        """The expected saving, else the middle of the range, else 0."""
        return _likely_ns(self)


@frozen_dataclass
class SavingPromise:
    """What was promised of a fix, alone, before a trial measured it; None where not known."""

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: Basis = "unknown"

    def __post_init__(self) -> None:
        _check_basis(self, self.basis, _check_figures(self, self.low_ns, self.expected_ns, self.high_ns))


@frozen_dataclass
class Saving:
    """How much a fix would save, in ns a step (in ns of the window where there are no steps), and how that is known.

    It is what the fix saves in its turn, after all fixes before it in the report.

    Attributes:
        low_ns, expected_ns, high_ns: At least, as expected, at most; each None where it is not known.
        basis: "measured": the fix was tried. "replayed": the trace was replayed with the fix. "bounded": the least and
            the most are proven. "unknown": there is no number, all are None.
        alone: What the fix saves by itself; all None until the finding is priced.
        promised: What the fix was expected to save by itself before `perfdoctor try` measured it; None where nothing
            was measured.
    """

    low_ns: int | None = None
    expected_ns: int | None = None
    high_ns: int | None = None
    basis: Basis = "unknown"
    alone: SavingAlone = field(default_factory=SavingAlone)
    promised: SavingPromise | None = None

    def __post_init__(self) -> None:
        known = _check_figures(self, self.low_ns, self.expected_ns, self.high_ns)
        if not isinstance(self.alone, SavingAlone):
            raise TypeError(f"what a fix saves alone is a SavingAlone, not {type(self.alone).__name__}")
        if self.promised is not None and not isinstance(self.promised, SavingPromise):
            raise TypeError(f"what was promised is a SavingPromise or None, not {type(self.promised).__name__}")
        _check_basis(self, self.basis, known)

    def cap(self, max_ns: int) -> Saving:
        """The same saving with no figure above `max_ns`."""
        low, expected, high = (
            None if ns is None else min(ns, max_ns) for ns in (self.low_ns, self.expected_ns, self.high_ns)
        )
        return Saving(low, expected, high, self.basis, self.alone, self.promised)

    @property
    def likely_ns(self) -> float:
        """The expected saving, else the middle of the range, else 0."""
        return _likely_ns(self)


def scale_figures(saving: SavingAlone | SavingPromise, factor: float) -> tuple[int | None, int | None, int | None]:
    """Low, expected and high figure of a saving, of a step that is `factor` times as long."""
    figures = (saving.low_ns, saving.expected_ns, saving.high_ns)
    low, expected, high = (None if ns is None else round(ns * factor) for ns in figures)
    return low, expected, high


def worth_ns(saving: Saving | SavingAlone, confidence: float) -> float:
    """What a saving is worth, for order and severity: what is expected, else half of the bound times the confidence.

    A bound is no less than what is saved at least. Without any figure it is worth 0.
    """
    if saving.expected_ns is not None:
        return saving.expected_ns
    return max((saving.high_ns or 0) / 2 * confidence, saving.low_ns or 0)


def _likely_ns(saving: Saving | SavingAlone) -> float:
    if saving.expected_ns is not None:
        return saving.expected_ns
    return ((saving.low_ns or 0) + (saving.high_ns or 0)) / 2


def _check_basis(saving: object, basis: str, known: list[int]) -> None:
    """Check that a basis exists, and that known figures have one."""
    if basis not in BASES:
        raise ValueError(f"the basis of a saving is one of {', '.join(BASES)}, not {basis!r}")
    if basis == "unknown" and known:
        raise ValueError(f"a saving with a number needs a basis: {saving}")


def _check_figures(saving: object, *figures_ns: int | None) -> list[int]:
    """The figures of a saving that are known, checked: whole nanoseconds in rising order."""
    known = [ns for ns in figures_ns if ns is not None]
    if any(not isinstance(ns, int) or isinstance(ns, bool) for ns in known):
        raise TypeError(f"a saving is in whole nanoseconds or None, not {saving}")
    if known != sorted(known) or any(ns < 0 or ns.bit_length() > 63 for ns in known):
        raise ValueError(f"a saving needs 0 <= low <= expected <= high, not {saving}")
    return known


@frozen_dataclass(eq=False)
class Claim:
    """The time of one rank that a fix would free, so that no nanosecond is promised twice.

    Attributes:
        intervals: The time, within the analysed window of `rank`.
        kernels: Whether it is kernel time: less of it shortens the step only as far as the CPU waits for the GPU. Less
            idle time always does.
        rank: The rank whose time it is; None for the rank of the finding.
        unshared_ns: Length of more claimed time, which no other finding can claim: only its length is known.
    """

    intervals: Intervals = field(default_factory=lambda: EMPTY)
    kernels: bool = False
    rank: int | None = None
    unshared_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Length of the claimed time."""
        return total(self.intervals) + self.unshared_ns
