"""JSON text becomes events, in chunks: memory stays near the size of the text, however many events there are.

Chunks are cut at places that look like the border of two events; a chunk that does not parse, because the cut was wrong
or something in it is damaged, is walked event by event instead, which is slow and exact. So a bad event costs itself,
and a file cut short its last event.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from perfdoctor.trace.source import Text

CHUNK = 4 << 20
_BATCH = 20_000

_SPACE = re.compile(rb"[ \t\r\n]*")
_EDGE = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|cat|name|args|pid|tid|ts|dur|id|s|bp)"\s*:)')
# Times with a fraction or exponent become strings: float64 holds microseconds since the epoch to a quarter of one only.
_TIME = re.compile(rb'"(ts|dur)"\s*:\s*(-?[0-9]+[.eE][0-9.eE+-]*)')
_ESCAPED_TIME = re.compile(
    rb'"((?:t|\\u0074)(?:s|\\u0073)|(?:d|\\u0064)(?:u|\\u0075)(?:r|\\u0072))"\s*:\s*(-?[0-9]+[.eE][0-9.eE+-]*)'
)
# Old profilers write numbers as C++ prints them, which no JSON parser takes: "blocks per SM": inf.
_C_NUMBER = re.compile(rb'(?<!\\)":\s*-?(?:inf|nan)(?:\(ind\))?(?=\s*[,}])')
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*'
_TOKEN = re.compile(_STRING + rb'(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_KEY = re.compile(_STRING + rb'"', re.DOTALL)
_SCALAR = re.compile(_STRING + rb'"|[^\s,\[\]{}"]+', re.DOTALL)

# Other keys can hold a dump of the user's environment: they are skipped unread.
_KEPT_KEYS = frozenset({"deviceProperties", "distributedInfo", "baseTimeNanoseconds", "record_shapes", "with_stack"})


class _CutError(Exception):
    """The text ends, or stops being JSON, before what is read is complete."""


@dataclass
class EventReader:
    """Iterates over a text's events in lists; what else there is to know is in the attributes once it is exhausted.

    Attributes:
        text: The JSON text: an object with `traceEvents`, or a bare list of events.
        kept: The top-level keys that are used, with their values.
        found: Whether there is a list of events at all.
        complete: False when the text is cut short or stops being JSON; `position` says at which byte.
        dropped: Elements of the list that cannot be parsed.
        chunk: Bytes parsed at once, at least.
    """

    text: Text
    chunk: int = CHUNK
    kept: dict[str, Any] = field(default_factory=dict)
    found: bool = False
    complete: bool = True
    position: int = 0
    dropped: int = 0

    @property
    def opened(self) -> bool:
        """Whether the text begins as an object or a list."""
        return self.text[:CHUNK].lstrip()[:1] in (b"{", b"[")

    def __iter__(self) -> Iterator[list[Any]]:
        """Lists of parsed events in the order of the text; `ts` and `dur` are exact: int, or text of a decimal."""
        self._peek()
        try:
            if self.text[self.position : self.position + 1] == b"[":
                yield from self._array()
            else:
                yield from self._object()
        except _CutError:
            self.complete = False

    def _object(self) -> Iterator[list[Any]]:
        """Walk the members of the top-level object."""
        self._expect(b"{")
        while self._peek() != b"}":
            key = self._key()
            if key == "traceEvents" and self._peek() == b"[":
                yield from self._array()
            else:
                start = self.position
                self.position = self._end_of_value(start)
                if key in _KEPT_KEYS:
                    self._keep(key, self.text[start : self.position])
            if self._peek() != b"}":
                self._expect(b",")
        self.position += 1

    def _keep(self, key: str, text: Text) -> None:
        """Keep the value of a top-level key; one that cannot be parsed is as good as none."""
        with contextlib.suppress(ValueError):
            self.kept[key] = parse_value(text)

    def _key(self) -> str:
        self._peek()
        match = _KEY.match(self.text, self.position)
        if match is None:
            raise _CutError
        self.position = match.end()
        self._expect(b":")
        self._peek()
        try:
            return str(parse_value(match.group()))
        except ValueError:
            raise _CutError from None

    def _array(self) -> Iterator[list[Any]]:
        """The events of a list: chunk by chunk, one by one where a chunk does not parse, and at the end."""
        self.found = True
        self._expect(b"[")
        self._peek()
        while True:
            edge = self._next_edge()
            if edge is None:
                break
            events = _parse_list(self.text[self.position : edge])
            if events is None:
                if (yield from self._walk(edge)):
                    return
            else:
                self.position = edge + 1
                self._peek()
                yield events
        yield from self._walk(len(self.text))

    def _next_edge(self) -> int | None:
        """Where the chunk that begins here ends: after the brace of an event that another one follows."""
        match = _EDGE.search(self.text, self.position + self.chunk)
        if match is None:
            for match in _EDGE.finditer(self.text, self.position):  # noqa: B007 - the last one is wanted
                pass
        return match.end() - 1 if match else None

    def _walk(self, until: int) -> Generator[list[Any], None, bool]:
        """Events one by one, up to a position or the end of the list; returns whether the list ended."""
        batch: list[Any] = []
        ended = False
        while not ended and self.position <= until:
            try:
                ended = self._element(batch)
            except _CutError:
                yield batch
                raise
            if len(batch) >= _BATCH:
                yield batch
                batch = []
        yield batch
        return ended

    def _element(self, batch: list[Any]) -> bool:
        """Parse the element of a list that begins here, and its comma; returns whether the list ended instead."""
        if self._peek() == b"]":
            self.position += 1
            return True
        start = self.position
        self.position = self._end_of_value(start)
        try:
            batch.append(parse_value(self.text[start : self.position]))
        except ValueError:
            self.dropped += 1
        if self._peek() != b"]":
            self._expect(b",")
        return False

    def _end_of_value(self, start: int) -> int:
        """Where the value that begins at `start` ends, by counting brackets outside strings."""
        if self.text[start : start + 1] not in (b"{", b"["):
            match = _SCALAR.match(self.text, start)
            if match is None:
                raise _CutError
            return match.end()
        depth = 0
        for match in _TOKEN.finditer(self.text, start):
            token = match.group()
            if token in (b"{", b"["):
                depth += 1
            elif token in (b"}", b"]"):
                depth -= 1
                if not depth:
                    return match.end()
        raise _CutError

    def _peek(self) -> bytes:
        """Step over white space; the byte there, or none at the end of the text."""
        match = _SPACE.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return bytes(self.text[self.position : self.position + 1])

    def _expect(self, byte: bytes) -> None:
        if self._peek() != byte:
            raise _CutError
        self.position += 1


def parse_value(text: Text) -> Any:
    """One JSON value, also with what strict JSON forbids: NaN, inf, control characters, bad UTF-8, lone surrogates.

    Raises:
        ValueError: it is no JSON value even so.
    """
    text = _exact_times(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        text = _C_NUMBER.sub(b'":null', text)
        try:
            return json.loads(text.decode("utf-8", errors="replace"), strict=False)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def _parse_list(text: Text) -> list[Any] | None:
    """The values of a comma-separated text; None when it is no such text in strict JSON."""
    try:
        values: list[Any] = orjson.loads(b"".join((b"[", _exact_times(text), b"]")))
    except orjson.JSONDecodeError:
        return None
    return values


def _exact_times(text: Text) -> Text:
    pattern = _ESCAPED_TIME if b"\\u00" in text else _TIME
    return pattern.sub(rb'"\1":"\2"', text)
