"""The gate of --fail-on and --baseline: which findings of a report fail."""

from __future__ import annotations

from typing import NamedTuple

from perfdoctor.comparison.baseline import Baseline, BaselineMatch, FindingState, match_baseline
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import ENGINE_RULE, SEVERITIES, Finding, Severity
from perfdoctor.report.report import Report
from perfdoctor.reporters.relative_paths import with_relative_paths

DEFAULT_LEVEL: Severity = "medium"
"""The severity from which on a finding fails where no other was asked for: it is worth 3 % of the step."""


class Judgement(NamedTuple):
    """A finding, whether it fails the gate, and what the baseline says of it; None without a baseline."""

    finding: Finding
    fails: bool
    known: FindingState | None = None


@frozen_dataclass
class Gate:
    """What a report has to pass: no finding from a severity on, but for those that a baseline accepts.

    A known finding that became dearer fails as a new one does. One below `level` never fails: a baseline makes a gate
    wider, not narrower.

    Attributes:
        level: The lowest severity that fails.
        baseline: The accepted findings; None where none is.
    """

    level: Severity = DEFAULT_LEVEL
    baseline: Baseline | None = None

    def judge(self, report: Report) -> tuple[Judgement, ...]:
        """Each finding of the report in its order; a rule that failed is not among them.

        Raises:
            InputError: The baseline is of another program.
        """
        gated = SEVERITIES[SEVERITIES.index(self.level) :]
        match = self.match(report)
        states = [None] * len(report.findings) if match is None else match.states
        return tuple(
            Judgement(finding, finding.severity in gated and (state is None or state.state != "accepted"), state)
            for finding, state in zip(report.findings, states, strict=True)
            if finding.rule != ENGINE_RULE
        )

    def match(self, report: Report) -> BaselineMatch | None:
        """The report against the baseline; None without one. Paths in a baseline are those that people read.

        Raises:
            InputError: The baseline is of another program.
        """
        return None if self.baseline is None else match_baseline(self.baseline, with_relative_paths(report))


DEFAULT_GATE = Gate()
