"""What several reporters ask of a Report: whether there are GPU items and steps, and which findings come first."""

from __future__ import annotations

from perfdoctor.analysis.timeline.account import Account
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report


def has_gpu(report: Report) -> bool:
    """Whether any trace is of a program whose GPU was recorded."""
    return any(trace.ran_on == "gpu" for trace in report.traces)


def gpu_not_recorded(report: Report) -> bool:
    """Whether a GPU worked, or may have, and none of its work was recorded: CPU events do not show where time went."""
    return not has_gpu(report) and any(trace.ran_on == "gpu_not_recorded" for trace in report.traces)


def is_cpu_program(report: Report) -> bool:
    """Whether the program computes on the CPU, whatever GPU its machine has."""
    return bool(report.timeline) and not has_gpu(report) and not gpu_not_recorded(report)


def is_snapshot(report: Report) -> bool:
    """Whether the files are snapshots of memory, which say nothing of time."""
    return bool(report.memory) and all(memory.source == "snapshot" for memory in report.memory)


def has_steps(report: Report) -> bool:
    """Whether costs and savings are per step; else they are of the whole window."""
    return report.steps.source != "none" and report.steps.median_ns is not None


def has_trials(report: Report) -> bool:
    """Whether the report is one of `perfdoctor try`."""
    return bool(report.trials) or report.trial_summary is not None


def per_step_suffix(report: Report) -> str:
    """What follows a cost: " a step", or "" where the whole window is meant."""
    return " a step" if has_steps(report) else ""


def step_length_ns(report: Report) -> float:
    """How long a step takes: what every other figure of a report is a part of; the window where there are no steps.

    It is the mean of the analysed steps on the rank where they take longest, since costs, savings, tables and the
    account are of an average step. The median differs where a few steps are slow, and no figure beside it adds up.
    """
    steps_ns = [account.time_scale * account.window_ns / step_count_of(account, report) for account in report.account]
    if steps_ns:
        return max(steps_ns)
    return report.steps.median_ns or max((trace.span_ns for trace in report.traces), default=0)


def share_of_step(report: Report, finding: Finding) -> float | None:
    """The cost of a finding as a share (0 to 1) of the step that the report names; None where no step is known.

    A finding itself knows only the step of its rank, which may be shorter.
    """
    step_ns = step_length_ns(report)
    return min(finding.cost_ns / step_ns, 1.0) if step_ns else None


def step_count_of(account: Account, report: Report) -> int:
    """The number of steps that an account covers; 1 for a window without steps."""
    return (len(account.steps) or report.steps.count or 1) if has_steps(report) else 1


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


def info_findings(report: Report, *, in_full: bool = True) -> list[Finding]:
    """The findings that are shown in one line each: of severity info, or whose fix is expected to save nothing.

    Unless `in_full` those that the first words of the report say anyway are left out: other programs had the cores.
    """
    is_busy = not in_full and any(trace.core_share is not None for trace in report.traces)
    aside = [finding for finding in report.findings if _stands_alone(finding) and _is_aside(finding)]
    return [finding for finding in aside if not (is_busy and (finding.rule, finding.subject) == ("PD512", "crowd"))]
