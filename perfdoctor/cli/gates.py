"""The gates of `analyze` and `run`: what makes a report that was printed end in an exit code other than 0."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoctor.errors import GateError, InputError, UsageError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from perfdoctor.analysis_options import AnalysisOptions
    from perfdoctor.report.report import Report
    from perfdoctor.reporters.finding_gate import Gate, Judgement

# More findings are counted, not named: the report above names them all.
_MAX_NAMED = 8


def check_ranks_complete(report: Report, rank: int | None) -> None:
    """The gate of --strict: every rank of the job was analysed, or the only one that was asked for.

    Raises:
        InputError: A rank could not be analysed, or has no trace.
    """
    from perfdoctor.units import format_ranges

    if report.missing:
        first, *others = report.missing
        more = f", and {len(others)} more" if others else ""
        raise InputError(f"--strict: {clean_line(first.path)}: {clean_line(first.warnings[0])}{more}")
    world_size = max((trace.world_size or 1 for trace in report.traces), default=1)
    lost = set(range(world_size)) - {account.rank or 0 for account in report.account}
    if rank is None and world_size > 1 and lost:
        raise InputError(
            f"--strict: of the job's {world_size} ranks there is no trace of {format_ranges(lost)}; give them, too"
        )


def open_gate(fail_on: str | None, baseline: str | None, *, updates: bool = False) -> Gate | None:
    """The gate that the options ask for; None without one.

    Args:
        fail_on: The severity of --fail-on.
        baseline: The file of --baseline.
        updates: Whether that file is written (--update-baseline), so that it may be missing.

    Raises:
        InputError: The baseline cannot be used.
        UsageError: It is to be updated and none is named.
    """
    if updates and baseline is None:
        raise UsageError("--update-baseline needs the file to write: --baseline FILE")
    if fail_on is None and baseline is None:
        return None
    from perfdoctor.comparison.baseline_file import read_baseline
    from perfdoctor.report.finding import SEVERITIES
    from perfdoctor.reporters.finding_gate import DEFAULT_LEVEL, Gate

    level = DEFAULT_LEVEL if fail_on is None else SEVERITIES[[*map(str, SEVERITIES)].index(fail_on)]
    if baseline is None or (updates and not Path(baseline).exists()):
        return Gate(level)
    return Gate(level, read_baseline(baseline))


def announce_settings(options: AnalysisOptions, gate: Gate | None) -> None:
    """Say on stderr what a file of settings changes of what a gate judges."""
    from perfdoctor.analysis_options import describe_settings_file

    note = None if gate is None else describe_settings_file(options)
    if note is not None:
        sys.stderr.write(f"perfdoctor: {clean_line(note)}\n")


def check_gate(report: Report, gate: Gate) -> None:
    """The gate of --fail-on and --baseline; says on stderr which accepted findings went away.

    Raises:
        GateError: A finding fails, or a chosen rule could not judge.
        InputError: The baseline is of another program.
    """
    failing = [judged for judged in gate.judge(report) if judged.fails]
    match = gate.match(report)
    for finding in match.gone if match is not None else ():
        place = f" at {clean_line(finding.file)}" if finding.file else ""
        what = f"{finding.rule} {clean_line(finding.title)}{place}"
        sys.stderr.write(f"perfdoctor: no longer found: {what}; --update-baseline takes it out of the baseline\n")
    name = f"--fail-on {gate.level}" if gate.baseline is None else f"--baseline {clean_line(gate.baseline.path)}"
    failed = [outcome.rule for outcome in report.outcomes if outcome.status == "failed"]
    if failing:
        raise GateError(f"{name}: {_describe_failing(failing, gate)}")
    if failed:
        raise GateError(f"{name} could not be judged: {', '.join(failed)} failed")
    if not any(outcome.status == "ran" for outcome in report.outcomes):
        raise GateError(f"{name} could not be judged: no rule could run; -v says what they lack")


def _describe_failing(failing: list[Judgement], gate: Gate) -> str:
    """How many findings fail and which; without a baseline their rules say enough."""
    count = f"{len(failing)} finding{'s are' if len(failing) > 1 else ' is'}"
    if gate.baseline is None:
        rules = ", ".join(sorted({judged.finding.rule for judged in failing}))
        return f"{count} of this severity or more ({rules})"
    named = "; ".join(_describe_unknown(judged) for judged in failing[:_MAX_NAMED])
    more = f"; and {len(failing) - _MAX_NAMED} more" if len(failing) > _MAX_NAMED else ""
    return f"{count} new or dearer, of severity {gate.level} or more: {named}{more}"


def _describe_unknown(judged: Judgement) -> str:
    """A new or dearer finding, in a few words."""
    from perfdoctor.units import format_duration, format_percent

    finding, known = judged.finding, judged.known
    title = clean_line(finding.title).rstrip(".")
    place = clean_line(finding.location.short) if finding.location else ""
    text = f"{finding.rule} {title}{f' at {place}' if place and place not in title else ''}"
    now = format_duration(finding.cost_ns)
    if not finding.cost_ns:
        return f"{text} (new, {finding.severity})"
    if known is None or known.accepted_cost_ns is None:
        return f"{text} (new, {finding.severity}, costs {now})"
    more = "" if known.growth is None else f"{format_percent(100 * known.growth)} "
    return f"{text} ({more}dearer, {format_duration(known.accepted_cost_ns)} -> {now})"


def check_program(report: Report, gate: Gate | None) -> None:
    """Check that the baseline is of the program of the report.

    Raises:
        InputError: It is not.
    """
    if gate is not None and gate.baseline is not None:
        from perfdoctor.comparison.baseline import check_same_program

        check_same_program(gate.baseline, report)


def save_baseline(report: Report, path: str, gate: Gate) -> None:
    """Write the baseline that accepts what a report has, and say so on stderr; the file appears whole or not at all.

    Raises:
        GateError: No rule could judge, so that nothing is known to accept.
        InputError: The file cannot be written, or is the baseline of another program.
    """
    from perfdoctor.comparison.baseline import update_baseline
    from perfdoctor.comparison.baseline_file import format_baseline
    from perfdoctor.installed_packages import find_version
    from perfdoctor.reporters.output import open_atomically
    from perfdoctor.reporters.relative_paths import with_relative_paths

    if not any(outcome.status == "ran" for outcome in report.outcomes):
        raise GateError(f"{clean_line(path)} was not written: no rule could run; -v says what they lack")
    updated = update_baseline(gate.baseline, with_relative_paths(report), path)
    text = format_baseline(updated, find_version())
    with open_atomically(path, "choose another place with --baseline") as out:
        out.write(text.encode())
    count = len(updated.findings)
    sys.stderr.write(f"wrote {clean_line(path)}: {count} finding{'' if count == 1 else 's'} accepted\n")
