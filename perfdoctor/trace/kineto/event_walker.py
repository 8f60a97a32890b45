"""Iterate over the events of a trace file in JSON: what all readers share, and the reference reader on top of orjson.

`JsonEventWalker` knows how a trace file is built, and what to do with damaged text; its subclasses read the list of
events. `EventReader` is the reference for them: it parses the list in chunks, so that memory stays at a few of them,
however long the text is. Chunks are cut where the text looks like the border of two events. A chunk that does not
parse, because the cut was wrong or something in it is damaged, is parsed event by event instead, which is slow and
exact. So a bad event costs itself, and a file cut short its last event.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator, Iterator
from typing import Any

import orjson

from perfdoctor.trace.scanner.text_window import Text, TextWindow, window_over

CHUNK_BYTES = 4 << 20
_BATCH = 20_000  # events
_MAX_CHUNKS = 4  # of text in which the border of two events is looked for

_SPACE = re.compile(rb"[ \t\r\n]*")
EVENT_BORDER = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|cat|name|args|pid|tid|ts|dur|id|s|bp)"\s*:)')
# Times with a fraction or exponent become strings: float64 resolves microseconds since the epoch to a quarter of one.
_TIME = re.compile(rb'"(ts|dur)"\s*:\s*(-?[0-9]+[.eE][0-9.eE+-]*)')
_ESCAPED_TIME = re.compile(
    rb'"((?:t|\\u0074)(?:s|\\u0073)|(?:d|\\u0064)(?:u|\\u0075)(?:r|\\u0072))"\s*:\s*(-?[0-9]+[.eE][0-9.eE+-]*)'
)
# Old profilers write numbers as C++ prints them, which no JSON parser takes: "blocks per SM": inf.
_C_NUMBER = re.compile(rb'(?<!\\)"\s*:\s*-?(?:inf|nan)(?:\(ind\))?(?=\s*[,}])')
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*'
_TOKEN = re.compile(_STRING + rb'(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(_STRING + rb'"|[^\s,\[\]{}"]+', re.DOTALL)

# Other keys can hold a dump of the user's environment: they are skipped unread.
_TOP_LEVEL_KEYS = frozenset(
    {"deviceProperties", "distributedInfo", "host_name", "baseTimeNanoseconds", "record_shapes", "with_stack"}
)


class TruncatedError(Exception):
    """The text ends, or stops being JSON, before what is read is complete."""


class JsonEventWalker:
    """Iterates over the events of a text in lists; the attributes are complete once it is exhausted.

    Attributes:
        window: The JSON text: an object with `traceEvents`, or a bare list of events.
        top_level: The top-level keys that are used, with their values.
        looks_like_json: Whether the text begins as an object or a list.
        is_empty: Whether the text holds nothing but white space.
        has_events: Whether there is a list of events, which may be empty.
        complete: False when the text is cut short or stops being JSON; `position` says at which byte.
        dropped: Elements of the list that cannot be parsed.
    """

    def __init__(self, window: TextWindow) -> None:
        self.window = window
        self.top_level: dict[str, Any] = {}
        self.looks_like_json = self.is_empty = self.has_events = False
        self.complete = True
        self.dropped = 0

    @property
    def position(self) -> int:
        """The byte of the text that would be read next."""
        return self.window.offset

    def __iter__(self) -> Iterator[list[Any]]:
        """Lists of parsed events in the order of the text; `ts` and `dur` are exact: int, or text of a decimal."""
        marked = self.window.skip_byte_order_mark()
        first = self._peek()
        self.looks_like_json, self.is_empty = first in (b"{", b"["), not first and not marked
        try:
            if first == b"[":
                yield from self._read_list()
            else:
                yield from self._read_object()
        except TruncatedError:
            self.complete = False

    def _read_list(self) -> Iterator[list[Any]]:
        """Read the list that begins here, as far as it goes; the reader itself deals with events not yielded.

        Raises:
            TruncatedError: the list is cut short; all before has been yielded.
        """
        raise NotImplementedError

    def _read_object(self) -> Iterator[list[Any]]:
        """Read the members of the top-level object."""
        self._expect(b"{")
        while self._peek() != b"}":
            key = self._read_key()
            if key == "traceEvents" and self._peek() == b"[":
                yield from self._read_list()
            else:
                value = self._read_value()
                if key in _TOP_LEVEL_KEYS:
                    # A value that cannot be parsed is treated as absent.
                    with contextlib.suppress(ValueError):
                        self.top_level[key] = parse_value(value)
            if self._peek() != b"}":
                self._expect(b",")
        self.window.position += 1

    def _read_key(self) -> str:
        if self._peek() != b'"':
            raise TruncatedError
        key = self._read_value()
        self._expect(b":")
        self._peek()
        try:
            return str(parse_value(key))
        except ValueError:
            raise TruncatedError from None

    def _read_element(self, batch: list[Any]) -> bool:
        """Parse the element of the list that begins here, and its comma; returns whether the list ended instead."""
        if self._peek() == b"]":
            self.window.position += 1
            return True
        try:
            batch.append(parse_value(self._read_value()))
        except ValueError:
            self.dropped += 1
        if self._peek() != b"]":
            self._expect(b",")
        return False

    def _read_value(self) -> Text:
        """Step over the value that begins here; returns its text."""
        window = self.window
        while True:
            end = _end_of_value(window.buffer, window.position, window.end)
            if end is not None and (end < window.end or window.exhausted):
                break
            # The window may slide even where nothing more comes: `end` is found again.
            if not window.read_more() and end is None:
                raise TruncatedError
        value = window.buffer[window.position : end]
        window.position = end
        return value

    def _peek(self) -> bytes:
        """Step over white space; returns the byte there, or none at the end of the text."""
        window = self.window
        while True:
            match = _SPACE.match(window.buffer, window.position, window.end)
            window.position = match.end() if match else window.position
            if window.position < window.end or not window.read_more():
                return bytes(window.buffer[window.position : min(window.position + 1, window.end)])

    def _expect(self, byte: bytes) -> None:
        if self._peek() != byte:
            raise TruncatedError
        self.window.position += 1


class EventReader(JsonEventWalker):
    """Reads the list of events with orjson.

    Args:
        text: The JSON text, or a window that slides over it.
        chunk_bytes: How much is parsed at once, at least.
    """

    def __init__(self, text: Text | TextWindow, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(text if isinstance(text, TextWindow) else window_over(text))
        self.chunk_bytes = chunk_bytes

    def _read_list(self) -> Iterator[list[Any]]:
        """Read the events of a list: chunk by chunk, but one by one where a chunk does not parse, and at the end."""
        self.has_events = True
        self._expect(b"[")
        self._peek()
        while True:
            border = self._next_border()
            events = None if border is None else parse_list(self.window.buffer[self.window.position : border])
            if border is None or events is None:
                until = self.window.base + (self.window.end if border is None else border)
                if (yield from self._read_one_by_one(until)):
                    return
            else:
                self.window.position = border + 1
                self._peek()
                yield events

    def _next_border(self) -> int | None:
        """The offset at which the chunk that begins here ends: behind the brace of an event that another one follows.

        None where there is no such border in as much text as it pays to search and to hold in memory.
        """
        window = self.window
        while True:
            match = EVENT_BORDER.search(window.buffer, window.position + self.chunk_bytes, window.end)
            if (
                match is not None
                or window.end - window.position > _MAX_CHUNKS * self.chunk_bytes
                or not window.read_more()
            ):
                break
        if match is None:
            for match in EVENT_BORDER.finditer(window.buffer, window.position, window.end):  # noqa: B007 - the last
                pass
        return match.end() - 1 if match else None

    def _read_one_by_one(self, until: int) -> Generator[list[Any], None, bool]:
        """Read events one by one up to a byte of the text or the end of the list; returns whether the list ended."""
        batch: list[Any] = []
        ended = False
        while not ended and self.position <= until:
            try:
                ended = self._read_element(batch)
            except TruncatedError:
                yield batch
                raise
            if len(batch) >= _BATCH:
                yield batch
                batch = []
        yield batch
        return ended


def _end_of_value(text: Text, start: int, end: int) -> int | None:
    """Where the value that begins at `start` ends, by counting brackets outside strings; None beyond the text.

    Raises:
        TruncatedError: no value begins there.
    """
    if text[start : start + 1] not in (b"{", b"["):
        match = _SCALAR.match(text, start, end)
        if match is None and text[start : start + 1] != b'"':
            raise TruncatedError
        return match.end() if match else None
    depth = 0
    for match in _TOKEN.finditer(text, start, end):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
            if not depth:
                return match.end()
    return None


def parse_value(text: Text) -> Any:
    """One JSON value, also with what strict JSON forbids: NaN, inf, control characters, bad UTF-8, lone surrogates.

    Raises:
        ValueError: it is no JSON value even so.
    """
    text = _quote_times(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        text = _C_NUMBER.sub(b'":null', text)
        try:
            return json.loads(text.decode("utf-8", errors="replace"), strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def parse_list(text: Text) -> list[Any] | None:
    """The values of a comma-separated text; None when it is no such text in strict JSON."""
    try:
        values: list[Any] = orjson.loads(b"".join((b"[", _quote_times(text), b"]")))
    except orjson.JSONDecodeError:
        return None
    return values


def _quote_times(text: Text) -> Text:
    """The text with its times as strings, which keep every digit."""
    pattern = _ESCAPED_TIME if b"\\u00" in text else _TIME
    return pattern.sub(rb'"\1":"\2"', text)
