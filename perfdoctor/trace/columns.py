"""Events become columns: what each kind of event says, taken over as it stands, one column at a time.

This is the seam behind which the way of reading can change: `Columns` is all that `kineto` knows of a file's events.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from perfdoctor.trace.intervals import Int64Array
from perfdoctor.trace.model import KERNEL, MEMCPY, MEMSET, NONE, Int32Array
from perfdoctor.trace.times import LIMIT_NS, exact_ns, nanoseconds

Event: TypeAlias = dict[str, Any]
Column: TypeAlias = npt.NDArray[np.signedinteger[Any]]

GPU, CALLS, OPS, RANGES, GPU_RANGES, FRAMES, SYNCS = "gpu", "calls", "ops", "ranges", "gpu_ranges", "frames", "syncs"

# Current and legacy names of the categories, in lower case.
KIND_OF_CATEGORY = {
    "kernel": GPU,
    "gpu_memcpy": GPU,
    "memcpy": GPU,
    "gpu_memset": GPU,
    "memset": GPU,
    "cuda_runtime": CALLS,
    "cuda_driver": CALLS,
    "hip_runtime": CALLS,
    "hip_driver": CALLS,
    "runtime": CALLS,
    "driver": CALLS,
    "cpu_op": OPS,
    "operator": OPS,
    "user_annotation": RANGES,
    "gpu_user_annotation": GPU_RANGES,
    "python_function": FRAMES,
    "cuda_sync": SYNCS,
}
_ITEM_OF_CATEGORY = {"gpu_memcpy": MEMCPY, "memcpy": MEMCPY, "gpu_memset": MEMSET, "memset": MEMSET}

# For each kind the columns of numbers in the arguments, with the spellings seen in real files.
_NUMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    GPU: {
        "device": ("device",),
        "stream": ("stream", "Stream"),
        "correlation": ("correlation", "Correlation"),
        "external_id": ("External id", "external id"),
        "bytes": ("bytes", "Bytes"),
    },
    CALLS: {"correlation": ("correlation", "Correlation")},
    OPS: {"external_id": ("External id", "external id")},
    FRAMES: {"id": ("Python id",), "parent_id": ("Python parent id",)},
    SYNCS: {"stream": ("stream", "Stream"), "correlation": ("correlation",), "wait_stream": ("wait_on_stream",)},
}
_TEXTS = {
    "dims": ("Input Dims", "Input dims"),
    "types": ("Input type", "Input types"),
    "strides": ("Input Strides", "Input strides"),
    "concrete": ("Concrete Inputs", "Concrete inputs"),
}
_RANK_STRIDE = 10**8  # tools that merge ranks into one file add rank x 1e8 to the process ids
_LAST_NUMBER = re.compile(r"([0-9]+)\s*\Z")


class Codes(dict[Any, int]):
    """Codes of strings, given on first sight; other keys are coded by their text, None by -1."""

    def __init__(self) -> None:
        super().__init__({None: NONE})
        self.texts: list[str] = []

    def __missing__(self, key: Any) -> int:
        text = _text_of(key)
        if text != key:
            self[key] = code = self[text]
            return code
        self[key] = code = len(self.texts)
        self.texts.append(text)
        return code

    def column(self, keys: Iterable[Any], count: int) -> Int32Array:
        """The codes of many keys."""
        return np.fromiter(map(self.__getitem__, keys), np.int32, count)


def _text_of(key: Any) -> str:
    """Text that can be written as UTF-8: lone surrogates become question marks."""
    if isinstance(key, bytes):
        return key.decode()
    text = key if isinstance(key, str) else "/".join(map(str, key))
    return text.encode("utf-8", errors="replace").decode()


@dataclass
class Columns:
    """The columns of each kind, in the order of the file.

    Every kind has `start_ns`, `dur_ns` (as in the file, so maybe negative), `name`, `thread` and `group` (0, or the
    rank in a file that merges ranks); further ones as in the tables above. Numbers are -1 where the file says nothing.

    Attributes:
        strings: The codes of names and of JSON texts.
        threads: The codes of ``pid/tid``.
        dropped: Events that are no objects, or of a known kind but without usable times.
        seen: Elements of the list of events; `phases` of them have a phase, as every event of a Chrome trace has.
    """

    strings: Codes = field(default_factory=Codes)
    threads: Codes = field(default_factory=Codes)
    dropped: int = 0
    seen: int = 0
    phases: int = 0
    _blocks: dict[str, list[dict[str, Column]]] = field(default_factory=lambda: defaultdict(list))
    _halves: list[Event] = field(default_factory=list)

    def add(self, events: list[Any]) -> None:
        """Take over a list of parsed events."""
        self.seen += len(events)
        if events and set(map(type, events)) != {dict}:
            self.dropped += len(events)
            events = [event for event in events if isinstance(event, dict)]
            self.dropped -= len(events)
        phases = self._grouped(events, "ph")
        self.phases += len(events) - len(phases.get(None, ()))
        self._halves += [event for phase in ("B", "E") for event in phases.get(phase, ())]
        self._add_complete(phases.get("X", []))

    def finish(self) -> dict[str, dict[str, Column]]:
        """The columns of each kind that occurs."""
        self._add_complete(self._pairs())
        return {
            kind: {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
            for kind, blocks in self._blocks.items()
        }

    def _grouped(self, events: list[Event], key: str) -> dict[Any, list[Event]]:
        groups: dict[Any, list[Event]] = defaultdict(list)
        try:
            for event in events:
                groups[event.get(key)].append(event)
        except TypeError:
            sane = [event for event in events if isinstance(event.get(key), (str, type(None)))]
            self.dropped += len(events) - len(sane)
            return self._grouped(sane, key)
        return groups

    def _add_complete(self, events: list[Event]) -> None:
        for category, group in self._grouped(events, "cat").items():
            kind = KIND_OF_CATEGORY.get(category.lower()) if isinstance(category, str) else None
            if kind is not None:
                self._add_group(kind, category.lower(), group)

    def _add_group(self, kind: str, category: str, events: list[Event]) -> None:
        start_ns, start_usable = nanoseconds([event.get("ts") for event in events])
        dur_ns, dur_usable = nanoseconds([event.get("dur") for event in events])
        usable = start_usable & dur_usable
        if not usable.all():
            self.dropped += int((~usable).sum())
            start_ns, dur_ns = start_ns[usable], dur_ns[usable]
            events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
        if not events:
            return
        block: dict[str, Column] = {"start_ns": start_ns, "dur_ns": dur_ns}
        block |= self._who(events)
        args: list[Any] = [event.get("args") for event in events]
        if set(map(type, args)) != {dict}:
            args = [each if isinstance(each, dict) else {} for each in args]
        for name, spellings in _NUMBERS.get(kind, {}).items():
            block[name] = integers(_values(args, spellings))
        if kind == OPS:
            for name, spellings in _TEXTS.items():
                block[name] = self.strings.column(map(_json, _values(args, spellings)), len(args))
        if kind == GPU:
            block["kind"] = np.full(len(events), _ITEM_OF_CATEGORY.get(category, KERNEL), np.int32)
            _place(block, events)
        self._blocks[kind].append(block)

    def _who(self, events: list[Event]) -> dict[str, Column]:
        """Name, thread and merged rank."""
        names = [event.get("name") for event in events]
        if set(map(type, names)) != {str}:
            names = ["" if name is None else str(name) for name in names]
        pids, tids = _sane_ids(events, "pid"), _sane_ids(events, "tid")
        return {
            "name": self.strings.column(names, len(names)),
            "thread": self.threads.column(zip(pids, tids, strict=True), len(pids)),
            "group": np.maximum(integers(pids) // _RANK_STRIDE, 0),
        }

    def _pairs(self) -> list[Event]:
        """Complete events made of B and E ones, which are rare; what finds no partner is dropped."""
        timed = [(event, exact_ns(event.get("ts"))) for event in self._halves]
        known = sorted(((event, at) for event, at in timed if at is not None), key=lambda pair: pair[1])
        self.dropped += len(timed) - len(known)
        stacks: dict[str, list[tuple[Event, int]]] = defaultdict(list)
        pairs: list[Event] = []
        for event, at in known:
            stack = stacks[f"{event.get('pid')}/{event.get('tid')}"]
            if event["ph"] == "B":
                stack.append((event, at))
            elif stack:
                begin, since = stack.pop()
                pairs.append(begin | {"ph": "X", "dur": f"{(at - since) // 1000}.{(at - since) % 1000:03}"})
            else:
                self.dropped += 1
        self.dropped += sum(map(len, stacks.values()))
        self._halves = []
        return pairs


def integers(values: Sequence[object]) -> Int64Array:
    """Numbers as the arguments hold them (integers, decimal or hexadecimal text); -1 for everything else."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int}:
            return np.array(values, np.int64)
        if kinds <= {int, type(None)}:
            return np.array([NONE if value is None else value for value in values], np.int64)
    except OverflowError:
        pass
    return np.array([_integer(value) for value in values], np.int64)


def _integer(value: object) -> int:
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            exact = exact_ns(value)
            value = None if exact is None or exact % 1000 else exact // 1000
    elif isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if not isinstance(value, int) or isinstance(value, bool):
        return NONE
    # Handles of streams are addresses: beyond int64 only that they stay distinct matters.
    return value if -2 * LIMIT_NS <= value < 2 * LIMIT_NS else value & (2 * LIMIT_NS - 1)


def _values(args: list[Event], spellings: tuple[str, ...]) -> list[Any]:
    first, *others = spellings
    values = [each.get(first) for each in args]
    for other in others:
        if None in values:
            values = [each.get(other) if value is None else value for each, value in zip(args, values, strict=True)]
    return values


def _json(value: Any) -> bytes | None:
    """The JSON text of a value, without white space; None for no value."""
    if value is None:
        return None
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, or integers beyond 64 bits
        return orjson.dumps(repr(value).encode("utf-8", errors="replace").decode())


def _sane_ids(events: list[Event], key: str) -> list[Any]:
    ids = [event.get(key) for event in events]
    if not set(map(type, ids)) <= {int, str}:
        ids = [each if isinstance(each, (int, str)) else "" if each is None else str(each) for each in ids]
    return ids


def _place(block: dict[str, Column], events: list[Event]) -> None:
    """Device and stream of GPU items whose arguments do not say them: from the row they are drawn on."""
    for name, key, number in (("device", "pid", _plain_number), ("stream", "tid", _last_number)):
        unknown = np.flatnonzero(block[name] == NONE)
        if len(unknown):
            block[name][unknown] = integers([number(events[row].get(key)) for row in unknown.tolist()])
    device = block["device"]
    block["device"] = np.where((device >= 0) & (device < 1 << 31), device, NONE).astype(np.int32)


def _plain_number(value: object) -> object:
    return value


def _last_number(value: object) -> object:
    """The 7 of a legacy row called "stream 7"."""
    match = _LAST_NUMBER.search(value) if isinstance(value, str) else None
    return match.group(1) if match else value
