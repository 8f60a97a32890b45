"""The places of a step as people read them: which ones stand in a report, and what is said of each. No layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from perfdoctor.analysis.timeline.account import BUCKETS
from perfdoctor.gpu.kernel_names import short_kernel_name
from perfdoctor.places.place import Place, Within
from perfdoctor.report.finding import Finding
from perfdoctor.report.report import Report
from perfdoctor.reporters.clean_text import clean_line
from perfdoctor.reporters.report_facts import is_cpu_program, main_findings
from perfdoctor.reporters.time_split import detail_labels
from perfdoctor.units import format_count, format_duration, format_share

MIN_SHARE = 0.05
"""Places with less of a step have no paragraph: it is the share from which on unclaimed time is said, too."""
FEW_PLACES = 3
PLACES_TITLE = "The places that take most of the time, what may go first"
# Work that is made cheaper mostly stays in part, while a wait or overhead may go: published fixes of work (rules PD2xx
# and PD3xx of a collection of 93) take away 18 % of the step in the median, and 54 % in the upper quartile.
WORK = ("compute", "bandwidth")
_SHARE_OF_WORK_THAT_GOES = 0.2
# A smaller part of a place is not named.
_MIN_PART = 0.1
_MOST = 0.5
_MAX_NAMED = 2
# What runs fewer ops inside is not said to run many: a linear layer has 8, a norm 9.
_MANY_OPS = 20
# Calls of a step on average, from which on it is not once.
_SEVERAL = 1.5


class PlaceText(NamedTuple):
    """What a report says of a place.

    Attributes:
        place: The place.
        name: What it is called: "train.py:41 in main".
        line: The number of its line; "" where it is none.
        source: The text of that line; "" where it cannot be read.
        share, time: Its part of the step.
        buckets: Its time by bucket, as shares (0 to 1) of the place, in the order of the account.
        causes: What its time is, the largest first.
        runs: What runs there.
        answers: What else is known of it.
        findings: The findings in full whose time lies there, with their numbers.
    """

    place: Place
    name: str
    line: str
    source: str
    share: str
    time: str
    buckets: Mapping[str, float]
    causes: str
    runs: str
    answers: tuple[str, ...]
    findings: tuple[tuple[int, Finding], ...]

    @property
    def what(self) -> str:
        """All that is said of it, in a line."""
        numbers = ", ".join(str(number) for number, _ in self.findings)
        about = f"{'findings' if len(self.findings) > 1 else 'finding'} {numbers}" if numbers else ""
        return "; ".join(filter(None, (self.causes, self.runs, *self.answers, about)))


def main_places(report: Report) -> list[Place]:
    """The places that stand in a report: those with a share worth saying, what may go first.

    Of several ranks they are those of the one for which the others wait, else of the one with the longest step.
    """
    rank = _rank_of(report)
    places = [place for place in report.places if place.rank == rank]
    large = [place for place in places if (place.share or 0.0) >= MIN_SHARE]
    return sorted(large, key=lambda place: -_may_go_ns(place, places, report))


def _rank_of(report: Report) -> int | None:
    if report.late_ns:
        return max(report.late_ns, key=lambda rank: report.late_ns[rank])
    slowest = max(report.account, key=lambda account: account.mean_step_ns, default=None)
    return None if slowest is None else slowest.rank


def _may_go_ns(place: Place, places: Sequence[Place], report: Report) -> float:
    """How much of a place may go, if its waits and overhead go, and its work gets as much cheaper as work does.

    What a finding there expects to save of its work is more than that guess; at several places each has its share.
    """
    work_ns = sum(place.causes[name] for name in WORK)
    expected_ns = 0.0
    for index in place.findings:
        whole_ns = sum(each.ns for each in places if index in each.findings)
        expected_ns = max(expected_ns, (report.findings[index].saving.expected_ns or 0) * place.ns / max(whole_ns, 1))
    return max(place.ns - (1 - _SHARE_OF_WORK_THAT_GOES) * work_ns, min(expected_ns, place.ns))


def place_texts(report: Report, most: int | None = FEW_PLACES) -> list[PlaceText]:
    """What a report says of its main places, `most` of them at most. A finding stands at the first of its places."""
    places = main_places(report)
    numbers = {id(finding): number for number, finding in enumerate(main_findings(report), 1)}
    shown: set[int] = set()
    texts = []
    for place in places[:most]:
        of_place = [report.findings[index] for index in place.findings]
        found = tuple((numbers[id(each)], each) for each in of_place if id(each) in numbers and id(each) not in shown)
        shown.update(id(each) for _, each in found)
        texts.append(_text_of(place, report, found))
    return texts


def _text_of(place: Place, report: Report, findings: tuple[tuple[int, Finding], ...]) -> PlaceText:
    buckets = {name: sum(place.causes[each] for each in details) for name, details in BUCKETS.items()}
    return PlaceText(
        place,
        name_place(place, in_full=True),
        "" if place.line is None else str(place.line),
        clean_line(place.source or ""),
        format_share(place.share),
        format_duration(place.ns),
        {name: ns / max(place.ns, 1) for name, ns in buckets.items()},
        _describe_causes(place, report),
        describe_runs(place),
        tuple(clean_line(answer.sentence) for answer in place.answers),
        findings,
    )


def name_place(place: Place, *, in_full: bool = False) -> str:
    """What a place is called: "train.py:41", in full with its function; "layer4.0.conv2", "conv2d"."""
    short = place.name.short
    if place.kind == "op":
        short = short_kernel_name(short)
    has_function = in_full and place.file is not None and place.function not in (None, "<module>")
    return clean_line(f"{short} in {place.function}" if has_function else short)


def describe_place(report: Report, place: Place) -> str:
    """A place as the rest of a sentence: "8.36 ms (41%) of it is train.py:41: array 8 times, waiting for ..."."""
    where, runs = name_place(place), describe_runs(place)
    if place.kind == "op" and runs.startswith(where):  # the op itself
        where, runs = runs, ""
    what = "; ".join(filter(None, (runs, _describe_wait(place, report))))
    return f"{format_duration(place.ns)} ({format_share(place.share)}) of it is {where}{f': {what}' if what else ''}"


def _describe_wait(place: Place, report: Report) -> str:
    """What most of a place waits for; "" where it works."""
    name, ns = max(place.causes.items(), key=lambda item: item[1])
    waits = name == "communication" or name.startswith("idle_")
    works = is_cpu_program(report) and name in ("idle_launch", "idle_unexplained")  # Python itself
    return detail_labels(report)[name] if waits and not works and ns >= _MOST * place.ns else ""


def describe_runs(place: Place) -> str:
    """What runs at a place: its largest calls, how often, what is inside of them; "" where that is not known."""
    large = [each for each in place.within if each.ns >= _MIN_PART * place.ns]
    parts = [_describe_call(each) for each in large[:_MAX_NAMED]]
    if 0 < place.backward_ns < place.ns and place.backward_ns >= _MIN_PART * place.ns:
        parts.append(f"{format_share(place.backward_ns / place.ns)} of it in the backward pass")
    return ", ".join(parts)


def _describe_call(call: Within) -> str:
    name = clean_line(short_kernel_name(call.name)) if call.kind in ("op", "kernel") else clean_line(call.name)
    each = "in each" if call.calls >= _SEVERAL else "inside"
    inside = f" with {format_count(round(call.inner_ops), 'op')} {each}" if call.inner_ops >= _MANY_OPS else ""
    return f"{name}{describe_calls(call.calls)}{inside}"


def describe_calls(calls: float | None) -> str:
    """How often something is called in a step, behind its name; "" where that is not known."""
    if not calls:
        return ""
    if calls < 0.95:
        return f" once in {1 / calls:.0f} steps" if calls <= 0.6 else " in most steps"
    return f" {calls:,.0f} times" if calls >= _SEVERAL else " once"


def _describe_causes(place: Place, report: Report) -> str:
    labels = detail_labels(report, short=True)
    large = [(ns, name) for name, ns in place.causes.items() if ns >= _MIN_PART * max(place.ns, 1)]
    return ", ".join(f"{format_duration(ns)} {labels[name]}" for ns, name in sorted(large, reverse=True))


def findings_elsewhere(report: Report, texts: Iterable[PlaceText]) -> list[tuple[int, Finding]]:
    """The findings in full that stand at none of the places shown, with their numbers."""
    shown = {number for text in texts for number, _ in text.findings}
    return [(number, each) for number, each in enumerate(main_findings(report), 1) if number not in shown]
