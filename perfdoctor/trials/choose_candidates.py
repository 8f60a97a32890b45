"""What to try: the changes that have something to say about the program, by what its findings promise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.report.finding import USED_AT
from perfdoctor.report.trial_result import Trial, Verdict
from perfdoctor.trials.change import is_advised
from perfdoctor.trials.load_changes import LoadedChange
from perfdoctor.trials.run_log import Choice

# A sweep over more settings of one change than this takes longer than it is worth, unless the change was asked for.
MAX_SETTINGS = 4

_NOTHING = "there is nothing to try on this program"
# Without a recording no optimizer, loader or switch of the program is known: that is no reason against a change.
_UNKNOWN = "its settings are chosen by a recording, and there is none: name one, as {name}=SETTING, or record first"

PlainFinding = Mapping[str, Any]
"""A finding as in the JSON report."""


def choose_candidates(
    wanted: Sequence[tuple[LoadedChange, str | None]],
    facts: CapturedFacts,
    findings: Sequence[PlainFinding],
    *,
    only_advised: bool,
    max_settings: int = MAX_SETTINGS,
) -> tuple[list[Choice], list[Trial]]:
    """The changes to try, the most promising first, and those that cannot be tried here.

    Args:
        wanted: The changes, each with a setting where one was asked for.
        facts: Those of rank 0 of a recording; false where there is none.
        findings: The findings of its report.
        only_advised: Leave out what no finding advises.
        max_settings: Settings of a change at most.
    """
    choices: list[tuple[float, Choice]] = []
    refused: list[Trial] = []
    for loaded, setting in wanted:
        why = explain_need(loaded.change.needs, facts)
        settings: tuple[str, ...] = () if setting is None else (setting,)
        verdict: Verdict = "not applicable"
        if not why and setting is None:
            try:
                settings = tuple(loaded.change.settings(facts, findings))[:max_settings]
            except Exception as error:  # a stranger's change may raise anything
                verdict, why = "broke", f"{type(error).__name__}: {error}"
        if not settings or why:
            if not only_advised:
                why = why or (_NOTHING if facts else _UNKNOWN.format(name=loaded.name))
                refused.append(Trial(loaded.name, "", verdict, why=why))
            continue
        promised_ns = max((worth_of(each) for each in find_advice(loaded, settings, findings)), default=None)
        if promised_ns is None and only_advised:
            continue
        choices += [(promised_ns or 0.0, Choice(loaded, each)) for each in settings]
    ordered = sorted(choices, key=lambda each: -each[0])
    return [choice for _, choice in ordered], refused


def explain_need(need: str, facts: CapturedFacts) -> str:
    """What a change needs and the program does not have; "" where it has it, or where that is not known."""
    if not facts or not need:
        return ""
    if need == "cuda":
        return "" if facts.devices else "it needs a GPU"
    return "" if (facts.world_size or 1) > 1 else "it needs a job of several ranks"


def find_advice(loaded: LoadedChange, settings: Sequence[str], findings: Sequence[PlainFinding]) -> list[PlainFinding]:
    """The findings that advise a change with any of some settings."""
    return [finding for finding in findings if any(is_advised(loaded.name, each, finding) for each in settings)]


def worth_of(finding: PlainFinding) -> float:
    """What the fix of a finding is worth alone, as `savings.saving.worth_ns` says, in ns."""
    alone = finding["saving"]["alone"]
    if alone["expected_ns"] is not None:
        return float(alone["expected_ns"])
    return max((alone["high_ns"] or 0) / 2 * float(finding["confidence"]), float(alone["low_ns"] or 0))


def match_findings(
    choice: Choice, places: Sequence[tuple[str, int | None, str | None]], findings: Sequence[PlainFinding]
) -> tuple[int, ...]:
    """The positions of the findings that a trial answers.

    These are the findings whose fix is the change. Where some of these name a line at which the change was met, only
    they are meant: a program may have two loaders, and a finding about one of them.

    Args:
        choice: The change and its setting.
        places: File, line and function at which its hook was met.
        findings: The findings of the report, in its order.
    """
    positions = [n for n, finding in enumerate(findings) if is_advised(choice.loaded.name, choice.setting, finding)]
    met = {f"{_short(file)}:{line}" for file, line, _ in places if line is not None}
    at_the_place = [n for n in positions if met & set(_lines_of(findings[n]))]
    elsewhere_rules = {findings[n]["rule"] for n in at_the_place}
    return tuple(n for n in positions if n in at_the_place or findings[n]["rule"] not in elsewhere_rules)


def _lines_of(finding: PlainFinding) -> list[str]:
    """The lines that a finding names, as "train.py:12": where a thing is made, and where it is used."""
    location = finding["location"]
    lines = [] if location is None else [f"{_short(location['file'])}:{location['line']}"]
    used = [each["value"] for each in finding["evidence"] if each["id"] == USED_AT]
    return lines + [_short(value) for value in used if isinstance(value, str)]


def _short(path: str) -> str:
    """The name of a file without its folders: recordings name them in several ways."""
    return path.replace("\\", "/").rpartition("/")[2]
