"""Splices events into the text of a Chrome trace, block by block.

The text itself is not parsed into values and stays as it was. The new events come first in the list of events. A text
that was cut short is ended after its last complete element.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from perfdoctor.errors import TraceError
from perfdoctor.trace.kineto.event_walker import parse_value

_BOM = b"\xef\xbb\xbf"
_TRACE_EVENTS = b'"traceEvents"'
# A string or a structural character. Group 1 is the closing quote, empty where the string goes on in a later block.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\]:,]', re.DOTALL)
_CLOSING_BRACKET = {b"{": b"}", b"[": b"]"}
# Metadata before the events takes some kB; a text without a list of events in this many bytes is no trace.
_MAX_HEAD_BYTES = 1 << 28


def splice_events(
    blocks: Iterable[bytes],
    events: Iterable[bytes],
    *,
    cut: bool,
    changed: Callable[[Iterator[bytes]], Iterator[bytes]] = iter,
) -> Iterator[bytes]:
    """The text of a trace with further events in front of its own.

    Args:
        blocks: The text in blocks of any size: an object with `traceEvents`, or a bare list.
        events: At least one event, each a JSON object.
        cut: Whether the text was cut short and must be ended.
        changed: Makes of the text from the first event on what is to stand there.

    Raises:
        TraceError: The text has no list of events.
    """
    source = iter(blocks)
    head, start = read_head(source)
    rest = changed(chain((head[start:],), source))
    if cut:
        rest = _end_cut_text(rest, [b"["] if _is_list(head) else [b"{", b"["])
    yield head[:start]
    for number, event in enumerate(events):
        yield (b",\n" if number else b"\n") + event
    yield from _prepend_comma(rest)


def members_before_events(blocks: Iterable[bytes]) -> dict[str, Any]:
    """The members of a trace's object that stand before its events; empty for a bare list.

    Raises:
        TraceError: The text has no list of events.
    """
    head, start = read_head(iter(blocks))
    try:
        whole = parse_value(head[:start] + (b"]" if _is_list(head) else b"]}"))
    except ValueError:
        return {}
    return whole if isinstance(whole, dict) else {}


def _is_list(head: bytes) -> bool:
    return head.lstrip()[:1] == b"["


def read_head(source: Iterator[bytes]) -> tuple[bytes, int]:
    """The blocks up to the one with the opening bracket of the events, joined, and the offset after that bracket."""
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
        if len(head) > _MAX_HEAD_BYTES:
            break
    raise TraceError("the trace cannot be annotated: it has no list of events")


def _prepend_comma(rest: Iterator[bytes]) -> Iterator[bytes]:
    """The text after our events, with a comma in front unless the list holds nothing else."""
    for block in rest:
        first = block.lstrip()[:1]
        if first:
            yield (b"\n" if first == b"]" else b",\n") + block
            break
    yield from rest


def _end_cut_text(rest: Iterable[bytes], stack: list[bytes]) -> Iterator[bytes]:
    """The rest of a cut text up to its last complete element, with every open bracket closed.

    `stack` holds the brackets that are open where `rest` begins. An element is complete when its own bracket has
    closed and it lies in the list of events or beside that list.
    """
    stack = list(stack)
    outer_depth = len(stack)
    closing = _closing_brackets(stack)
    pending, at = b"", 0
    for block in rest:
        pending += block
        complete = 0
        for token in _TOKEN.finditer(pending, at):
            text = token[0]
            if text[:1] == b'"' and not token[1]:
                break
            at = token.end()
            if text in (b"{", b"["):
                stack.append(text)
            elif text in (b"}", b"]") and stack:
                stack.pop()
                if len(stack) <= outer_depth:
                    complete, closing = at, _closing_brackets(stack)
        yield pending[:complete]
        pending, at = pending[complete:], at - complete
    yield closing


def _closing_brackets(stack: list[bytes]) -> bytes:
    return b"".join(_CLOSING_BRACKET[bracket] for bracket in reversed(stack)) + b"\n"
