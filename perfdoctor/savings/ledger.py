"""The savings that can still be promised on one rank: no nanosecond is promised twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfdoctor.savings.saving import Claim
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.intervals import EMPTY, Intervals


@dataclass(slots=True)
class Ledger:
    """What the fixes of a rank have claimed of its time and of the CPU's wait for the GPU.

    Attributes:
        window_ns: Length of the analysed time.
        steps: How many steps the window has; 1 where there are none.
        time_scale: Time without the profiler over recorded time: savings are of the former, claims and window of the
            latter.
        kernel_budget_ns: What faster kernels can still save in the window; None where that is not known.
        claimed: The time that fixes have claimed already.
    """

    window_ns: int
    steps: int = 1
    kernel_budget_ns: float | None = None
    claimed: Intervals = field(default_factory=lambda: EMPTY)
    time_scale: float = 1.0

    @property
    def step_ns(self) -> int:
        """The mean step without the profiler, or the window where there are no steps."""
        return int(round(self.time_scale * self.window_ns, 3) / self.steps)

    def limit_ns(self, claim: Claim, *, kernels: bool = True) -> int:
        """The most that a claim can still save, in ns a step.

        Args:
            claim: The claim.
            kernels: Whether `kernel_budget_ns` limits a claim of kernel time.
        """
        free_ns = iv.total(iv.subtract(claim.intervals, self.claimed)) + claim.unshared_ns
        if not claim.total_ns:
            free_ns = self.window_ns
        if claim.kernels and kernels and self.kernel_budget_ns is not None:
            free_ns = min(free_ns, int(self.kernel_budget_ns))
        return int(round(self.time_scale * free_ns, 3) / self.steps)

    def claim_time(self, claim: Claim, saved_ns: int) -> None:
        """Record a promised saving of `saved_ns` a step, so that its time cannot be claimed again."""
        self.claimed = iv.union_of((self.claimed, claim.intervals))
        self.reduce_kernel_budget(claim, saved_ns)

    def reduce_kernel_budget(self, claim: Claim, saved_ns: int) -> None:
        """Lower the budget for kernels by a promised saving of `saved_ns` a step."""
        if claim.kernels and self.kernel_budget_ns is not None:
            self.kernel_budget_ns -= saved_ns * self.steps / self.time_scale

    def overlaps(self, claim: Claim) -> bool:
        """Whether some of a claim's time is claimed already."""
        return bool(len(iv.intersect(claim.intervals, self.claimed)))
