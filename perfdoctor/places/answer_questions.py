"""What is known of a place by the questions that are asked of each (knowledge/places.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perfdoctor.facts.forms import MeasuredForm
from perfdoctor.gpu.classify_ops import classify_op
from perfdoctor.gpu.kernel_rules import MATRIX_CATEGORIES
from perfdoctor.places.place import Answer, PlaceName, Within
from perfdoctor.units import format_count, format_time

# One call that runs as many ops loops inside: a composed op, such as an attention layer, runs up to 60.
_MIN_INNER_OPS = 100
# So many calls of what takes so short are one loop: their cost is that of calling. A shorter one is Python's own.
_MIN_CALLS, _MIN_NS, _SHORT_NS = 50, 500, 50_000
# A form that saves less of its place is not worth the doubt about results.
_MIN_FORM_SHARE = 0.2


class CallCounts(NamedTuple):
    """How often an op is called at a place, a step.

    Attributes:
        calls: In all.
        inner_ops: How many ops run inside of each.
        by_code: By the user's code, or in calls of a library's functions by it; 0 where nobody knows.
        name: Its name in the trace.
    """

    calls: float
    inner_ops: float
    by_code: float
    name: str

    @property
    def is_loop(self) -> bool:
        """Whether it is one of C++ that loops: compiled code and functions of Python run what somebody wrote."""
        return self.inner_ops >= _MIN_INNER_OPS and "::" in self.name

    @property
    def loop_calls(self) -> float:
        """How often a loop of the user's calls it: layers do not count, which wait for each other."""
        return 0 if classify_op(self.name) in MATRIX_CATEGORIES else self.by_code


def answer_questions(within: Iterable[Within], ops: Mapping[str, CallCounts]) -> tuple[Answer, ...]:
    """The answers that follow from what a place calls: whether it is one call with a loop inside, or many calls."""
    answers = []
    for call in within:
        each_ns, op = call.ns / max(call.calls, 1), ops.get(call.name) if call.kind == "op" else None
        calls = call.calls if call.kind == "function" else 0.0 if op is None else op.loop_calls
        if op is not None and op.is_loop:
            count = format_count(round(call.inner_ops), "op")
            said = (
                f"one call of {call.name} runs {count} inside: it loops by itself; look for an op or argument without"
            )
            answers.append(Answer("many", said, call.ns, "measured"))
        elif not answers and calls >= _MIN_CALLS and _MIN_NS <= each_ns <= _SHORT_NS:
            count = f"{calls:,.0f} calls of {call.name}"
            said = f"{count} of {format_time(each_ns)} each: one on all of it at once calls once"
            answers.append(Answer("many", said, call.ns, "measured"))
    return tuple(answers)


def answer_by_forms(forms: Iterable[MeasuredForm], place: PlaceName, place_ns: int) -> tuple[Answer, ...]:
    """The form with the largest saving that changes the results: those that are equal are findings of PD212."""
    best = max(
        (form for form in forms if form.results != "equal" and form.saves_ns() and _is_at(form, place)),
        key=MeasuredForm.saves_ns,
        default=None,
    )
    if best is None or best.saves_ns() < _MIN_FORM_SHARE * place_ns:
        return ()
    now, other = format_time(best.now_ns or 0), format_time(best.form_ns or 0)
    said = f"{best.ops[-1]} takes {now} a call, and {other} with {best.says}, measured here: results change"
    return (Answer("cheaper_form", said, min(round(best.saves_ns()), place_ns), "measured"),)


def _is_at(form: MeasuredForm, place: PlaceName) -> bool:
    """Whether most of the time of a form's calls is at a line, whose file a report may name relative to the program."""
    line = form.lines[0] if form.lines else None
    return (
        line is not None
        and line.line == place.line
        and None not in (line.file, place.file)
        and (line.file == place.file or str(line.file).endswith(f"/{place.file}"))
    )
