"""What is known of a place by the questions that are asked of each (knowledge/places.md)."""

from __future__ import annotations

from collections.abc import Iterable

from perfdoctor.places.place import Answer, Within
from perfdoctor.units import format_count, format_time

# One call that runs as many ops loops inside: a composed op, such as an attention layer, runs up to 60.
_MIN_INNER_OPS = 100
# So many calls of what takes so short are one loop: their cost is that of calling. A shorter one is Python's own.
_MIN_CALLS, _MIN_NS, _SHORT_NS = 50, 500, 50_000


def answer_questions(within: Iterable[Within]) -> tuple[Answer, ...]:
    """The answers that follow from what a place calls: whether it is one call with a loop inside, or many calls."""
    answers = []
    for call in within:
        each_ns = call.ns / max(call.calls, 1)
        if call.kind == "op" and call.inner_ops >= _MIN_INNER_OPS:
            ops = format_count(round(call.inner_ops), "op")
            said = f"one call of {call.name} runs {ops} inside: it loops by itself; another op or argument ends that"
            answers.append(Answer("many", said, call.ns, "measured"))
        elif not answers and call.calls >= _MIN_CALLS and _MIN_NS <= each_ns <= _SHORT_NS:
            count = f"{call.calls:,.0f} calls of {call.name}"
            said = f"{count} of {format_time(each_ns)} each: one on all of it at once calls once"
            answers.append(Answer("many", said, call.ns, "measured"))
    return tuple(answers)
