"""What can still be promised on one rank, so that no nanosecond is promised twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfdoctor.savings.saving import Claim
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals


@dataclass(slots=True)
class Ledger:
    """The time of a rank that no fix has claimed yet, and the CPU's wait for the GPU.

    Attributes:
        window_ns: Length of the analysed time.
        steps: Divides window time into time a step (1 without steps).
        kernel_budget_ns: What faster kernels may still save in the window; None when nothing bounds it.
        claimed: The time that was promised already.
    """

    window_ns: int
    steps: int = 1
    kernel_budget_ns: float | None = None
    claimed: Intervals = field(default_factory=lambda: EMPTY)

    @property
    def step_ns(self) -> int:
        """Length of a step, of the window without steps."""
        return int(self.window_ns / self.steps)

    def limit_ns(self, claim: Claim, *, kernels: bool = True) -> int:
        """The most that a claim may still save, a step; the budget for kernels counts if `kernels`."""
        free = iv.total(iv.subtract(claim.intervals, self.claimed)) + claim.exclusive_ns
        if not claim.total_ns:
            free = self.window_ns
        if claim.kernels and kernels and self.kernel_budget_ns is not None:
            free = min(free, int(self.kernel_budget_ns))
        return int(free / self.steps)

    def charge(self, claim: Claim, saved_ns: int) -> None:
        """Record a promise of `saved_ns` a step."""
        self.claimed = iv.union_of((self.claimed, claim.intervals))
        self.spend(claim, saved_ns)

    def spend(self, claim: Claim, saved_ns: int) -> None:
        """Take what a promise of `saved_ns` a step needs of the CPU's wait for the GPU off the budget."""
        if claim.kernels and self.kernel_budget_ns is not None:
            self.kernel_budget_ns -= saved_ns * self.steps

    def overlaps(self, claim: Claim) -> bool:
        """Whether some of a claim's time was promised already."""
        return bool(len(iv.intersect(claim.intervals, self.claimed)))
