"""Events spliced into the text of a Chrome trace, block by block.

The text itself is not parsed into values and stays as it was. Ours come first in the list of events. A text that was
cut short is ended after its last complete element.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from perfdoctor.errors import TraceError

_BOM = b"\xef\xbb\xbf"
_TRACE_EVENTS = b'"traceEvents"'
# A string ends with its quote in group 1; without it the rest of the string is in a later block.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\]:,]', re.DOTALL)
_CLOSER = {b"{": b"}", b"[": b"]"}
# Metadata in front of the events is some kB; a text that has none in this many bytes is no trace.
_OPENING_WITHIN = 1 << 28


def spliced(blocks: Iterable[bytes], events: Iterable[bytes], *, cut: bool) -> Iterator[bytes]:
    """The text of a trace with further events in front of its own.

    Args:
        blocks: the text in blocks of any size; either form of it, an object with `traceEvents` or a bare list.
        events: at least one event, each a JSON object.
        cut: the text ends early and must be ended.

    Raises:
        TraceError: there is no list of events in it.
    """
    source = iter(blocks)
    head, opening = _head(source)
    rest: Iterator[bytes] = chain((head[opening:],), source)
    if cut:
        rest = _ended(rest, [b"["] if _is_list(head) else [b"{", b"["])
    yield head[:opening]
    for number, event in enumerate(events):
        yield (b",\n" if number else b"\n") + event
    yield from _after_a_comma(rest)


def _is_list(head: bytes) -> bool:
    return head.lstrip()[:1] == b"["


def _head(source: Iterator[bytes]) -> tuple[bytes, int]:
    """The text up to some place behind the opening bracket of the events, and the offset right behind that bracket."""
    head = b""
    depth, before, last = 0, b"", b""
    at = 0
    for block in source:
        head = head + block if head else block.removeprefix(_BOM)
        for token in _TOKEN.finditer(head, at):
            text = token[0]
            if text[:1] == b'"' and not token[1]:
                break
            at = token.end()
            if text == b"[" and (depth == 0 or (depth == 1 and (before, last) == (_TRACE_EVENTS, b":"))):
                return head, at
            depth += (text in (b"{", b"[")) - (text in (b"}", b"]"))
            before, last = last, text
        if len(head) > _OPENING_WITHIN:
            break
    raise TraceError("the trace cannot be annotated: it has no list of events")


def _after_a_comma(rest: Iterator[bytes]) -> Iterator[bytes]:
    """What follows our events, behind a comma unless the list holds nothing else."""
    for block in rest:
        first = block.lstrip()[:1]
        if first:
            yield (b"\n" if first == b"]" else b",\n") + block
            break
    yield from rest


def _ended(rest: Iterable[bytes], stack: list[bytes]) -> Iterator[bytes]:
    """The rest of a cut text up to its last complete element, with every open bracket closed.

    `stack` holds the brackets that are open where `rest` begins. An element counts as complete when its own bracket
    has closed, and it lies in the list of events or beside it.
    """
    stack = list(stack)
    shallow = len(stack)
    closers = _closers(stack)
    pending, at = b"", 0
    for block in rest:
        pending += block
        safe = 0
        for token in _TOKEN.finditer(pending, at):
            text = token[0]
            if text[:1] == b'"' and not token[1]:
                break
            at = token.end()
            if text in (b"{", b"["):
                stack.append(text)
            elif text in (b"}", b"]") and stack:
                stack.pop()
                if len(stack) <= shallow:
                    safe, closers = at, _closers(stack)
        yield pending[:safe]
        pending, at = pending[safe:], at - safe
    yield closers


def _closers(stack: list[bytes]) -> bytes:
    return b"".join(_CLOSER[bracket] for bracket in reversed(stack)) + b"\n"
