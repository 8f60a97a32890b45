"""What several reporters ask of a Report: whether there are GPU items and steps, and which findings come first."""

from __future__ import annotations

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report


def has_gpu(report: Report) -> bool:
    """Whether any trace has a GPU item."""
    return any(timeline.window_ns is not None for timeline in report.timeline)


def gpu_not_recorded(report: Report) -> bool:
    """Whether a trace names a GPU and none of its work was recorded: CPU events alone do not show where time went."""
    return not has_gpu(report) and any(trace.device for trace in report.traces)


def is_cpu_program(report: Report) -> bool:
    """Whether the program computes on the CPU: no trace has a GPU item, or names a device."""
    return bool(report.timeline) and not has_gpu(report) and not gpu_not_recorded(report)


def has_steps(report: Report) -> bool:
    """Whether costs and savings are per step; else they are of the whole window."""
    return report.steps.source != "none" and report.steps.median_ns is not None


def per_step_suffix(report: Report) -> str:
    """What follows a cost: " a step", or "" where the whole window is meant."""
    return " a step" if has_steps(report) else ""


def step_count_of(account: Account, report: Report) -> int:
    """The number of steps that an account covers; 1 for a window without steps."""
    return len(account.steps) or (report.steps.count if has_steps(report) else 1) or 1


def time_scale_of(report: Report) -> float:
    """Time without the profiler over recorded time, on the mean of the ranks: accounts are of recorded time."""
    recorded_ns = sum(account.window_ns for account in report.account)
    unprofiled_ns = sum(account.time_scale * account.window_ns for account in report.account)
    return unprofiled_ns / recorded_ns if recorded_ns else 1.0


def main_findings(report: Report) -> list[Finding]:
    """The findings that are shown in full, in their order.

    Those that another fix makes pointless stand with that one; one-offs, those of severity info and those whose fix is
    expected to save nothing take a line each.
    """
    return [finding for finding in report.findings if _stands_alone(finding) and not _is_aside(finding)]


def _stands_alone(finding: Finding) -> bool:
    return finding.covered_by is None and not finding.is_one_off


def _is_aside(finding: Finding) -> bool:
    """Whether a finding has a line among what was also seen; one that costs nothing is about the results."""
    saves_nothing = finding.saving.expected_ns == 0 or finding.saving.high_ns == 0
    return finding.severity == "info" or bool(finding.cost_ns and saves_nothing)


def covered_findings(report: Report, finding: Finding) -> list[Finding]:
    """The findings that the fix of `finding` makes pointless."""
    position = next(position for position, each in enumerate(report.findings) if each is finding)
    return [each for each in report.findings if each.covered_by == position]


def one_off_findings(report: Report) -> list[Finding]:
    """The findings about what happens now and then, and not in the median step."""
    return [finding for finding in report.findings if finding.is_one_off and finding.covered_by is None]


def info_findings(report: Report) -> list[Finding]:
    """The findings that are shown in one line each: of severity info, or whose fix is expected to save nothing."""
    return [finding for finding in report.findings if _stands_alone(finding) and _is_aside(finding)]
