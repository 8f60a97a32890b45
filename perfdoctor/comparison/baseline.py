"""A baseline: the findings of a program that are known and accepted, against those of a report.

A finding is the same whatever its figures and the number of its line: by what it is about, its file, and the text of
its line or its function. So an edit above a line brings no new finding, and a second wait in another function does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from perfdoctor.analysis.step_noise import StepSample, compare_steps
from perfdoctor.comparison.match_findings import SAME_CODE, pair_findings
from perfdoctor.comparison.seen_finding import SeenFinding, finding_of_report
from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.finding import ENGINE_RULE
from perfdoctor.report.report import Report

BaselineState: TypeAlias = Literal["new", "dearer", "accepted"]

DEARER_BY = 0.2
"""A known finding whose cost grows by more than this share is not the one that was accepted."""
_MAX_NOISE = 0.10


@frozen_dataclass
class Baseline:
    """The accepted findings, and of what program they are; what is not known is None.

    Attributes:
        path: Where it is from.
        program: The name of the script; a bare trace does not tell it.
        device: The name of the device, where the recording names it.
        phase: "training", "inference", "evaluation" or "unknown".
        steps: The steps that costs are of; without steps the median is the whole window.
        has_steps: Whether there are steps.
        files: The names of source files that were seen.
        findings: The accepted findings, in the order of the file.
    """

    SCHEMA: ClassVar[str] = "perfdoctor.baseline/1"

    path: str
    program: str | None
    device: str | None
    phase: str
    steps: StepSample
    has_steps: bool
    files: tuple[str, ...]
    findings: tuple[SeenFinding, ...]


class FindingState(NamedTuple):
    """What a baseline says of a finding.

    Attributes:
        state: Whether it is known.
        accepted_cost_ns: What it cost when it was accepted; None for a new one.
        growth: By which share of that it costs more now; None where it cost nothing.
    """

    state: BaselineState
    accepted_cost_ns: int | None = None
    growth: float | None = None


class BaselineMatch(NamedTuple):
    """A report against a baseline.

    Attributes:
        states: For each finding of the report, in its order.
        gone: The accepted findings that their rule no longer finds.
        not_judged: The accepted findings whose rule did not judge.
    """

    states: tuple[FindingState, ...]
    gone: tuple[SeenFinding, ...]
    not_judged: tuple[SeenFinding, ...]


def baseline_of_report(report: Report, path: str) -> Baseline:
    """All findings of a report as accepted ones, whatever their severity: one that is small today may not be new."""
    device = next((t.device for t in report.traces if t.device and t.device_from != "kernels"), None)
    has_steps = report.steps.source != "none" and report.steps.median_ns is not None
    window_ns = max((account.window_ns for account in report.account), default=0)
    median_ns = report.steps.median_ns if has_steps else window_ns
    findings = tuple(finding_of_report(each) for each in report.findings if each.rule != ENGINE_RULE)
    places = [each.file_name for each in findings] + [str(row["file"]) for row in report.tables.get("lines", ())]
    return Baseline(
        path=path,
        program=report.program_name,
        device=device,
        phase=report.context.phase,
        steps=StepSample((), median_ns, report.steps.count if has_steps else 1, report.steps.variation),
        has_steps=has_steps,
        files=tuple(sorted({PurePosixPath(place.replace("\\", "/")).name for place in places if place})),
        findings=findings,
    )


def check_same_program(baseline: Baseline, report: Report) -> None:
    """Check that a baseline is of the program of a report, as far as both tell.

    Raises:
        InputError: They are of different programs, devices or phases.
    """
    now = baseline_of_report(report, "")
    reason = None
    if None not in (baseline.program, now.program):
        if baseline.program != now.program:
            reason = f"of {baseline.program}, and the recording is of {now.program}"
    elif baseline.files and now.files and not {*baseline.files} & {*now.files}:
        reason = f"of a program with {baseline.files[0]}, and the recording is of one with {now.files[0]}"
    if reason is None and None not in (baseline.device, now.device) and baseline.device != now.device:
        reason = f"of a recording on {baseline.device}, and this one is on {now.device}"
    phases = (baseline.phase, now.phase)
    if reason is None and "unknown" not in phases and baseline.phase != now.phase:
        reason = f"of {baseline.phase}, and the recording is of {now.phase}"
    if reason is not None:
        raise InputError(f"{baseline.path} is a baseline {reason}: give it a baseline of its own")


def match_baseline(baseline: Baseline, report: Report) -> BaselineMatch:
    """Which findings of a report are known, dearer or new, and which accepted ones are no longer found.

    Raises:
        InputError: The baseline is of another program; see `check_same_program`.
    """
    check_same_program(baseline, report)
    now = baseline_of_report(report, "")
    states: dict[int, FindingState] = {}
    lost: list[SeenFinding] = []
    for old, new in pair_findings(baseline.findings, now.findings, SAME_CODE):
        if new is None:
            assert old is not None
            lost.append(old)
        elif old is None:
            states[id(new)] = FindingState("new")
        else:
            states[id(new)] = _describe_known(old, new, baseline, now)
    ran = {outcome.rule for outcome in report.outcomes if outcome.status == "ran"}
    seen = iter(now.findings)
    return BaselineMatch(
        tuple(
            FindingState("accepted") if each.rule == ENGINE_RULE else states[id(next(seen))] for each in report.findings
        ),
        tuple(finding for finding in lost if finding.rule in ran),
        tuple(finding for finding in lost if finding.rule not in ran),
    )


def _describe_known(old: SeenFinding, new: SeenFinding, before: Baseline, after: Baseline) -> FindingState:
    """Whether a known finding costs over 20 % more, and that by more than the noise.

    The cost of a recording without steps is that of its whole window, whose length is an accident: then shares of the
    window are compared.
    """
    old_ns, new_ns, step_ns = float(old.cost_ns), float(new.cost_ns), before.steps.median_ns or 0.0
    if not (before.has_steps and after.has_steps):
        new_ns *= step_ns / max(after.steps.median_ns or 0.0, 1.0)
    growth = new_ns / old_ns - 1 if old_ns else None
    is_dearer = new_ns > (1 + DEARER_BY) * old_ns and new_ns - old_ns > _noise_ns(before.steps, after.steps)
    return FindingState("dearer" if is_dearer else "accepted", old.cost_ns, growth)


def _noise_ns(before: StepSample, after: StepSample) -> float:
    """By how much a cost may differ between two recordings of one program.

    By as much as the median step: all that varies in it may be this cost. One slow step of many makes that large and
    moves no median, and of few steps it is not known; so it is never more than what makes a finding high.
    """
    max_ns = _MAX_NOISE * (before.median_ns or 0.0)
    visible_ns = compare_steps([before], [after]).visible_ns
    return max_ns if visible_ns is None else min(visible_ns, max_ns)


def update_baseline(baseline: Baseline | None, report: Report, path: str) -> Baseline:
    """The baseline that accepts what a report has.

    A finding that is as dear as it was accepted keeps what the file says of its cost: recordings differ, and a cost
    that creeps is measured against the first one. Findings whose rule did not judge stay.
    """
    now = baseline_of_report(report, path)
    if baseline is None:
        return _sorted(now)
    match = match_baseline(baseline, report)
    own = [state for finding, state in zip(report.findings, match.states, strict=True) if finding.rule != ENGINE_RULE]
    kept = {id(new): old for old, new in pair_findings(baseline.findings, now.findings, SAME_CODE) if old and new}
    findings = []
    for finding, state in zip(now.findings, own, strict=True):
        old = kept.get(id(finding))
        if old is not None and state.state == "accepted" and finding.cost_ns >= (1 - DEARER_BY) * old.cost_ns:
            finding = replace(finding, cost_ns=old.cost_ns, title=old.title, severity=old.severity)
        findings.append(finding)
    return _sorted(replace(now, findings=(*findings, *match.not_judged)))


def _sorted(baseline: Baseline) -> Baseline:
    def order(finding: SeenFinding) -> tuple[str, str, str, int, str]:
        place = (finding.file or "", finding.function or "", finding.line or 0)
        return (finding.rule, *place, finding.subject or "")

    return replace(baseline, findings=tuple(sorted(baseline.findings, key=order)))
