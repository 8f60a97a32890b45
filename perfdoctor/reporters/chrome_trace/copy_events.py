"""Copies the text of a list of events, block by block, with some of its values changed; all else stays byte for byte.

The C library copies plain events, some 500 MB of text a second, and this module those that it leaves: the few that
move to another thread, metadata that names a process, and whatever is not plain. Where the library cannot be used,
every event is copied here, at 3 MB a second.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import orjson

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.reporters.chrome_trace.slices import TrackId
from perfdoctor.trace.kineto.event_walker import JsonEventWalker, TruncatedError, parse_value
from perfdoctor.trace.kineto.exact_times import parse_time
from perfdoctor.trace.scanner.core_library import find_library
from perfdoctor.trace.scanner.layout import MORE, PAD, Copy
from perfdoctor.trace.scanner.text_window import Source, TextWindow, window_over

_NEVER = 1 << 62
_GROWTH = 8  # a one-digit time may get 20 digits, but its event has at least eight bytes more
_SEPARATORS = b", \t\r\n"
_SEPARATION = re.compile(rb"[, \t\r\n]*")


@frozen_dataclass(eq=False)
class Changes:
    """What changes in the events of a file.

    Attributes:
        tids: The new thread id of some events, by their place in the list.
        offset_ns: What is added to all times.
        pid_shift: What is added to the process ids that are numbers.
        id_shift: What is added to the ids of arrows and of what else is found by ids.
        sort_shift: What is added to the places of processes among the others.
        label: What stands before the names of processes, and before process ids that are texts; empty for nothing.
    """

    tids: Mapping[int, int | str] = field(default_factory=dict)
    offset_ns: int = 0
    pid_shift: int = 0
    id_shift: int = 0
    sort_shift: int = 0
    label: str = ""

    @property
    def every_event(self) -> bool:
        """Whether all events change, and not just those that move."""
        return bool(self.offset_ns or self.pid_shift or self.id_shift or self.sort_shift or self.label)

    def pid(self, pid: TrackId) -> TrackId:
        """The new process id for an old one."""
        if isinstance(pid, str):
            return self.name(pid)
        return None if pid is None else pid + self.pid_shift

    def name(self, name: str) -> str:
        """The new name of a process."""
        return f"{self.label}: {name}" if self.label else name


class EventCopier(JsonEventWalker):
    """Copies the events of one list, from behind the bracket that opens it on.

    Attributes:
        ended: Whether the list was read to its end; the window then stands at the closing bracket. It was not where the
            text is cut short.
    """

    def __init__(self, window: TextWindow, changes: Changes) -> None:
        super().__init__(window)
        self.ended = False
        self._library = find_library()
        self._changes = changes
        self._moved = np.array([*sorted(changes.tids), _NEVER], np.int64)
        self._next = 0

    def copy(self) -> Iterator[bytes]:
        """The text up to the closing bracket, or as many whole events as there are."""
        try:
            while not self.ended:
                if self._library is not None:
                    stopped, text = self._copy_plain(self._library)
                    yield text
                    if stopped == MORE and self.window.read_more():
                        continue
                yield from self._copy_element()
        except TruncatedError:
            return

    def _copy_plain(self, library: ctypes.CDLL) -> tuple[int, bytes]:
        """Copy events with the library, as far as it goes; why it stopped, and the text."""
        window, changes = self.window, self._changes
        text = window.array
        out = np.empty(_GROWTH * (window.end - window.position) + PAD, np.uint8)
        wanted = self._moved[np.searchsorted(self._moved, self._next) :]
        copy = Copy(
            text=text.ctypes.data + window.position,
            stop=text.ctypes.data + window.end,
            out=out.ctypes.data,
            next=self._next,
            moved=wanted.ctypes.data,
            changes=changes.every_event,
            offset_ns=changes.offset_ns,
            pid_shift=changes.pid_shift,
            id_shift=changes.id_shift,
        )
        stopped = library.perfdoctor_copy_events(ctypes.byref(copy))
        window.position = copy.text - text.ctypes.data
        self._next = copy.next
        return stopped, out[: copy.out - out.ctypes.data].tobytes()

    def _copy_element(self) -> Iterator[bytes]:
        """Copy one element of the list in Python, with the white space and the commas before it."""
        before = self._skip_separators()
        if self._peek() == b"]":
            self.ended = True
            yield before
            return
        element = bytes(self._read_value())
        try:
            changed = change_event(element, self._changes, self._changes.tids.get(self._next))
            self._next += 1
        except ValueError:  # no JSON: it does not count, as it does not where the file is read
            changed = element
        yield before + changed

    def _skip_separators(self) -> bytes:
        """Step over white space and commas; returns them."""
        skipped = b""
        while True:
            window = self.window
            match = _SEPARATION.match(window.buffer, window.position, window.end)
            skipped += match.group() if match else b""
            window.position += len(match.group()) if match else 0
            if window.position < window.end or not window.read_more():
                return skipped


def copy_elements(blocks: Iterator[bytes], changes: Changes) -> Iterator[bytes]:
    """The elements of a list of events from behind its opening bracket on, many at a time, without commas around them.

    Of a text that is cut short the whole ones.
    """
    for text in EventCopier(TextWindow(_source_of(blocks)), changes).copy():
        if elements := text.strip(_SEPARATORS):
            yield elements


def copy_list(blocks: Iterator[bytes], changes: Changes) -> Iterator[bytes]:
    """The text from behind the bracket that opens a list of events on, with changes in the events.

    What follows the list stays as it is. A text that is cut short ends after its last whole event.
    """
    copier = EventCopier(TextWindow(_source_of(blocks)), changes)
    yield from copier.copy()
    window = copier.window
    while copier.ended and (window.position < window.end or window.read_more()):
        yield bytes(window.buffer[window.position : window.end])
        window.position = window.end


def _source_of(blocks: Iterator[bytes]) -> Source:
    """The function from which a window gets a text that comes in blocks."""
    rest = memoryview(b"")

    def read(view: memoryview) -> int:
        nonlocal rest
        while not rest:
            block = next(blocks, None)
            if block is None:
                return 0
            rest = memoryview(block)
        count = min(len(rest), len(view))
        view[:count], rest = rest[:count], rest[count:]
        return count

    return read


def change_event(text: bytes, changes: Changes, tid: int | str | None = None) -> bytes:
    """The text of one event with the changes in it, and with another thread id unless that is None.

    Raises:
        ValueError: The text is no JSON.
    """
    event = parse_value(text)
    if not isinstance(event, dict) or not (changes.every_event or tid is not None):
        return text
    new: dict[str, bytes] = {}
    if tid is not None:
        new["tid"] = orjson.dumps(tid)
    if changes.every_event:
        new |= _changed_members(event, changes)
    return _replace_members(text, new)


def _changed_members(event: dict[str, Any], changes: Changes) -> dict[str, bytes]:
    """The new texts of the members that change, by key."""
    new: dict[str, bytes] = {}
    if changes.offset_ns and parse_time(event.get("ts")) is not None:
        new["ts"] = _shifted_time(str(event["ts"]), changes.offset_ns)
    if isinstance(event.get("pid"), (int, str)):
        new["pid"] = orjson.dumps(changes.pid(event["pid"]))
    for key in ("id", "bind_id"):
        if key in event:
            new[key] = _shifted_id(event[key], changes.id_shift)
    args = event.get("args")
    if event.get("ph") == "M" and isinstance(args, dict):
        name, place = args.get("name"), args.get("sort_index")
        if event.get("name") == "process_name" and isinstance(name, str):
            new["args"] = orjson.dumps(args | {"name": changes.name(name)})
        if event.get("name") == "process_sort_index" and isinstance(place, int):
            new["args"] = orjson.dumps(args | {"sort_index": place + changes.sort_shift})
    return new


def _shifted_time(us: str, by_ns: int) -> bytes:
    """The text of a time plus some nanoseconds; the digits below them stay."""
    with localcontext() as context:
        context.prec = len(us) + 40
        return f"{Decimal(us.strip()) + Decimal(by_ns).scaleb(-3):f}".encode()


def _shifted_id(value: Any, by: int) -> bytes:
    """The text of an id, which may be a number or the text of a hexadecimal one, plus some number."""
    if isinstance(value, int):
        return b"%d" % (value + by)
    try:
        return orjson.dumps(hex(int(value, 16) + by))
    except (TypeError, ValueError):
        return orjson.dumps(value if not by else f"{by:x}:{value}")


class _Members(JsonEventWalker):
    """The places of an event's members in its text."""

    def places(self) -> Iterator[tuple[str, int, int]]:
        """Key, begin and end of each value."""
        self._expect(b"{")
        while self._peek() != b"}":
            key = self._read_key()
            begin = self.window.position
            self._read_value()
            yield key, begin, self.window.position
            if self._peek() != b"}":
                self._expect(b",")


def _replace_members(text: bytes, new: Mapping[str, bytes]) -> bytes:
    """The text of an object with other values for some of its keys."""
    pieces, copied = [], 0
    for key, begin, end in _Members(window_over(text)).places():
        if key in new:
            pieces += [text[copied:begin], new[key]]
            copied = end
    return b"".join((*pieces, text[copied:]))


def microseconds(ns: int) -> bytes:
    """Nanoseconds as microseconds in decimal, exactly: a float would lose the fraction of times since the epoch."""
    whole, fraction = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, fraction)
