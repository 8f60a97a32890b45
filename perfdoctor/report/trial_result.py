"""Trial: what one change was worth when the program ran with it, and what all trials of a program have in common."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from perfdoctor.analysis.host.locations import SourceLocation
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.savings.saving import SavingAlone, SavingPromise
from perfdoctor.value_limits import Signed

Verdict: TypeAlias = Literal["faster", "same", "slower", "undecided", "repair", "broke", "not applicable"]
VERDICTS: tuple[Verdict, ...] = ("faster", "same", "slower", "undecided", "repair", "broke", "not applicable")
IntendedChange: TypeAlias = Literal["", "results", "files"]
"""What a change alters on purpose: results that are wrong without it (a repair), or what the program writes."""
SAME_WITHIN = 0.05
"""A step that a change alters by less than this share is called the same, where the pairs show that it is less."""
ALL = "all"
"""The change that stands for the combination of the winners."""


@frozen_dataclass
class RatioRange:
    """Steps with a change over steps of the plain program, neighbour by neighbour.

    Attributes:
        median: The median of the pairs.
        low, high: An interval of the median (`trial_statistics.estimate_ratio`).
        pairs: How many pairs there are.
    """

    median: float
    low: float
    high: float
    pairs: int


@frozen_dataclass
class Trial:
    """One change with one setting, measured in turns with the plain program.

    Attributes:
        change, setting: What was tried; the combination of the winners is change "all".
        step_ns, before_ns: The step with it and without it. That without it is the median of the plain runs next to
            it, the other that one times the median ratio; None where no pair is.
        ratio: The pairs' ratios of step to step before; None where no pair is.
        loss_difference: The largest relative difference of losses at the same step numbers; None where they cannot be
            compared.
        is_loss_expected: Whether the change may make such a difference; None where there is none to explain.
        peak_memory_bytes: The most memory of any rank with the change, the median over its runs.
        memory_before_bytes: The same of the plain program.
        verdict: "faster" or "slower"; "same" within `same_within`, which is at most `SAME_WITHIN`; "undecided" where
            the pairs do not tell; "repair" where it ran and is meant to alter results, whatever its step; "broke", or
            "not applicable": `why` says what happened.
        why: The first line of the error, or why the change does not apply; "" for what was measured.
        detail: What the change changed: "num_workers 0 -> 2".
        fix: The code or the environment variable that makes the change permanent.
        locations: The lines at which the change was met.
        promised: What the findings promised that it answers; None where it answers none.
        rules: The rules of these findings.
        in_turn: What it gave on top of the better changes in the combination, nothing where it was left out for that;
            None for what was never part of it.
        alters_numerics, is_what_if, intended_change: As of the change.
        skipped_ns: How much longer than the plain program's the steps before the timed ones took, all together: where
            a change compiles, that is the time for compiling.
        same_within: How far from the plain step the one with the change can be, as a share.
        missing_pairs: About how many more pairs would decide; of no meaning where they have.
        cpu_ratio: CPU time of the process in a step with the change over that without it, the median of the pairs; None
            where the system does not say it.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("change", "setting", "step_ns", "before_ns", "saved_ns", "low_ns", "high_ns", "pairs"),
        *("loss_difference", "peak_memory_bytes", "memory_before_bytes", "verdict"),
    )

    change: str
    setting: str
    verdict: Verdict
    step_ns: int | None = None
    before_ns: int | None = None
    ratio: RatioRange | None = None
    loss_difference: float | None = None
    is_loss_expected: bool | None = None
    peak_memory_bytes: int | None = None
    memory_before_bytes: int | None = None
    why: str = ""
    detail: str = ""
    fix: str = ""
    locations: tuple[SourceLocation, ...] = ()
    promised: SavingPromise | None = None
    rules: tuple[str, ...] = ()
    in_turn: SavingAlone | None = None
    alters_numerics: bool = False
    is_what_if: bool = False
    intended_change: IntendedChange = ""
    skipped_ns: int | None = None
    same_within: float | None = None
    missing_pairs: int | None = None
    cpu_ratio: float | None = None

    @property
    def label(self) -> str:
        """Change and setting as one would give them to `--only`."""
        return f"{self.change}={self.setting}" if self.setting and self.change != ALL else self.change

    @property
    def is_measured(self) -> bool:
        """Whether there is a measured step with it."""
        return self.ratio is not None and self.verdict not in ("broke", "not applicable")

    @property
    def worth(self) -> SavingAlone:
        """What the change saves alone, as a saving: no figure is below 0, and only "faster" saves anything for sure."""
        low, saved, high = (max(ns or 0, 0) for ns in (self.low_ns, self.saved_ns, self.high_ns))
        if self.verdict == "faster":
            return SavingAlone(low, saved, high)
        return SavingAlone(0, 0, high if self.verdict in ("same", "undecided") else 0)

    @property
    def pairs(self) -> int:
        """How many pairs of runs were compared."""
        return 0 if self.ratio is None else self.ratio.pairs

    @property
    def saved_ns(self) -> Signed | None:
        """What the change saves of a step, by the median of the pairs; below 0 where it costs."""
        return self._saved_at(None if self.ratio is None else self.ratio.median)

    @property
    def low_ns(self) -> Signed | None:
        """What it saves at least, by the interval of the median."""
        return self._saved_at(None if self.ratio is None else self.ratio.high)

    @property
    def high_ns(self) -> Signed | None:
        """What it saves at most."""
        return self._saved_at(None if self.ratio is None else self.ratio.low)

    def _saved_at(self, ratio: float | None) -> int | None:
        if ratio is None or self.before_ns is None:
            return None
        return round(self.before_ns * (1 - ratio))


@frozen_dataclass
class TrialSummary:
    """What all trials of a program have in common; not part of the schema of the report.

    Attributes:
        noise: How far plain runs that follow one another differ, as a share of the step.
        step_ns: The step of the plain program, the median of its runs.
        runs: How many times the program was run for the trials.
        seconds: How long that took.
        timed_steps: How many steps of each run were timed.
        ranks: How many ranks the program has; a step of several is that of the latest rank.
        notes: Sentences for the reader, such as that losses cannot be compared.
    """

    noise: float
    step_ns: int | None
    runs: int
    seconds: float
    timed_steps: int
    ranks: int = 1
    notes: tuple[str, ...] = ()
