"""The gates of `analyze` and `run`: what makes a report that was printed end in an exit code other than 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfdoctor.errors import GateError, InputError
from perfdoctor.reporters.clean_text import clean_line

if TYPE_CHECKING:
    from perfdoctor.report.report import Report


def check_ranks_complete(report: Report, rank: int | None) -> None:
    """The gate of --strict: every rank of the job was analysed, or the only one that was asked for.

    Raises:
        InputError: A rank could not be analysed, or has no trace.
    """
    from perfdoctor.report.merge_findings import format_ranges

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


def check_severities(report: Report, level: str) -> None:
    """The gate of --fail-on.

    Raises:
        GateError: A finding has the severity `level` or a higher one, or a chosen rule could not judge.
    """
    from perfdoctor.report.finding import SEVERITIES

    failed = [outcome.rule for outcome in report.outcomes if outcome.status == "failed"]
    gated = SEVERITIES[[*map(str, SEVERITIES)].index(level) :]
    severe = [f.rule for f in report.findings if f.severity in gated and f.rule != "PD901"]
    if severe:
        rules = ", ".join(sorted(set(severe)))
        count = f"{len(severe)} finding{'s are' if len(severe) > 1 else ' is'}"
        raise GateError(f"--fail-on {level}: {count} of this severity or more ({rules})")
    if failed:
        raise GateError(f"--fail-on {level} could not be judged: {', '.join(failed)} failed")
    if not any(outcome.status == "ran" for outcome in report.outcomes):
        raise GateError(f"--fail-on {level} could not be judged: no rule could run; -v says what they lack")
