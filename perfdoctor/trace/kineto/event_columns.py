"""EventColumns: the events of a file as columns, by kind, with their values as they stand there.

Both readers fill it, and `build_trace` makes the Trace of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from perfdoctor.trace.arrays import LIMIT_NS, NONE, Int32Array, Int64Array, IntArray, as_int32
from perfdoctor.trace.kineto.argument_values import count_blocks, parse_integers, to_json, to_label, to_text
from perfdoctor.trace.kineto.exact_times import parse_time, parse_times
from perfdoctor.trace.kineto.merged_pids import ranks_of_threads
from perfdoctor.trace.tables.model import KERNEL, MEMCPY, MEMSET
from perfdoctor.trace.tables.string_codes import StringCodes
from perfdoctor.trace.tables.time_order import time_order

Event: TypeAlias = dict[str, Any]

GPU, CALLS, OPS, RANGES, GPU_RANGES, FRAMES, SYNCS = "gpu", "calls", "ops", "ranges", "gpu_ranges", "frames", "syncs"
OTHER_DEVICE = "other_device"
"""Events of accelerators whose work is not recorded as kernels, and of which no fact is known."""
MEMORY = "memory"
"""Instants at which a tensor's memory was allocated or freed, or could not be allocated."""
COMMS = "comms"
"""Not a kind of event, but what events of any kind say of collectives: with the index of the event that says it."""

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
    "cpu_instant_event": MEMORY,
}
OTHER_DEVICE_CATEGORIES = (
    # Kineto, libkineto/include/ActivityType.h.
    "mtia_runtime", "mtia_ccp_events", "mtia_insight", "mtia_counters", "hpu_op", "xpu_runtime", "xpu_driver",
    "xpu_sync", "xpu_scope_profiler", "privateuse1_runtime", "privateuse1_driver",
    # The copies of Kineto in torch_mlu (Cambricon) and torch_gcu (Enflame).
    "mlu_runtime", "mlu_memcpy", "mlu_memset", "gcu_runtime", "gcu_driver", "gcu_memcpy", "gcu_memset",
    # torch_npu (Ascend): the task queue to the device, whose own events have no category.
    "enqueue", "dequeue",
)  # fmt: skip
"""Categories of the events of other accelerators, their calls on the CPU among them."""
KIND_OF_CATEGORY |= dict.fromkeys(OTHER_DEVICE_CATEGORIES, OTHER_DEVICE)
MARK_OF_CATEGORY = {
    "gpu_memcpy": MEMCPY,
    "memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "memset": MEMSET,
    **{category: index for index, category in enumerate(OTHER_DEVICE_CATEGORIES)},
}
"""Column `kind`: what a GPU item does, KERNEL where nothing stands here; or an index into OTHER_DEVICE_CATEGORIES."""

# For each kind the columns of numbers in the arguments, with the spellings seen in real files.
NUMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    GPU: {
        "device": ("device",),
        "stream": ("stream", "Stream"),
        "correlation": ("correlation", "Correlation"),
        "external_id": ("External id", "external id"),
        "bytes": ("bytes", "Bytes"),
    },
    CALLS: {"correlation": ("correlation", "Correlation"), "external_id": ("External id",)},
    OPS: {"external_id": ("External id", "external id"), "sequence_number": ("Sequence number", "sequence number")},
    FRAMES: {"id": ("Python id",), "parent_id": ("Python parent id",)},
    SYNCS: {
        "stream": ("stream", "Stream"),
        "correlation": ("correlation",),
        "wait_stream": ("wait_on_stream",),
        "record_correlation": ("wait_on_cuda_event_record_corr_id",),
    },
    MEMORY: {
        "bytes": ("bytes", "Bytes"),
        "address": ("Addr",),
        "allocated": ("Total Allocated",),
        "reserved": ("Total Reserved",),
        "device_type": ("Device Type",),
        "device_index": ("Device Id",),
    },
    COMMS: {
        "group_size": ("Group size",),
        "in_elements": ("In msg nelems",),
        "out_elements": ("Out msg nelems",),
        "sequence": ("Seq",),
    },
}
GRID = "grid"
"""The argument of GPU items that holds a kernel's blocks in each dimension; their column is `blocks`."""
COLLECTIVE = "Collective name"
"""The argument of every event that says something of a collective."""
LABELS: dict[str, tuple[str, ...]] = {
    "collective": (COLLECTIVE,),
    "dtype": ("dtype",),
    "group": ("Process Group Name",),
    "description": ("Process Group Description",),
    "ranks": ("Process Group Ranks",),
}
"""For COMMS the columns of labels, with the spellings of their arguments."""
TEXTS: dict[str, tuple[str, ...]] = {
    "dims": ("Input Dims", "Input dims"),
    "types": ("Input type", "Input types"),
    "strides": ("Input Strides", "Input strides"),
    "concrete": ("Concrete Inputs", "Concrete inputs"),
}
"""For OPS the columns of JSON texts, with the spellings of their arguments."""
_SORT_KEYS: tuple[str, ...] = ("start_ns", "dur_ns", "event_index")
_LAST_NUMBER = re.compile(r"(?<![0-9])([0-9]+)\s*\Z")  # tried once a number, not once a digit


class ValueCodes(StringCodes):
    """Codes of strings, and of other values by their text; NONE for None."""

    def __init__(self) -> None:
        super().__init__()
        self[None] = NONE

    def __missing__(self, key: Any) -> int:
        if isinstance(key, str) and key.isascii():
            return super().__missing__(key)
        text = _text_of(key)
        if text == key:
            return super().__missing__(text)
        self[key] = code = self[text]
        return code

    def encode(self, keys: Iterable[Any], count: int) -> Int32Array:
        """The codes of many keys, `count` of them."""
        return np.fromiter(map(self.__getitem__, keys), np.int32, count)


def _text_of(key: Any) -> str:
    """Text that can be written as UTF-8: lone surrogates become question marks."""
    text = key if isinstance(key, str) else "/".join(map(str, key))
    return text.encode("utf-8", errors="replace").decode()


class ThreadNumbers:
    """The rows of the timeline: pairs of process and thread id, numbered as they are first seen."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int | str, int | str], int] = {}

    def number(self, pid: object, tid: object) -> int:
        """The number of a pair; an id that is neither integer nor text counts by its text, and None as empty."""
        pair = _clean_id(pid), _clean_id(tid)
        return self._numbers.setdefault(pair, len(self._numbers))

    def encode(self, events: list[Event]) -> Int32Array:
        """The numbers of the threads of many events."""
        pairs = ((event.get("pid"), event.get("tid")) for event in events)
        return np.fromiter((self.number(pid, tid) for pid, tid in pairs), np.int32, len(events))

    @property
    def ids(self) -> tuple[tuple[list[int | str], list[int | str]], int]:
        """Process ids and thread ids by number, and how many there are."""
        return ([pid for pid, _ in self._numbers], [tid for _, tid in self._numbers]), len(self._numbers)


@dataclass
class EventColumns:
    """The columns of each kind.

    Every kind has `start_ns`, `dur_ns` (as in the file, so maybe negative), `name`, `thread`, and `rank` in a file that
    merges ranks; further ones as in the tables above. Numbers are NONE where the file says nothing.

    What an event counts as is decided here alone. It is dropped when it is not an object, when its phase or category is
    a list or an object, and when it is complete, of a known kind, and without usable times. It is passed over in
    silence when its phase or category is another one, or not text.

    Attributes:
        strings: The codes of names and of JSON texts.
        threads: The codes of ``pid/tid``; empty until `finish`.
        pairs: The threads of the events, before they become codes.
        dropped: Events that cannot be used.
        seen: Elements of the list of events; `phases` of them have a phase, as every event of a Chrome trace has.
        workers: Threads that put the columns together.
    """

    strings: ValueCodes = field(default_factory=ValueCodes)
    threads: ValueCodes = field(default_factory=ValueCodes)
    pairs: ThreadNumbers = field(default_factory=ThreadNumbers)
    dropped: int = 0
    seen: int = 0
    phases: int = 0
    workers: int = 1
    _blocks: dict[str, list[dict[str, IntArray]]] = field(default_factory=lambda: defaultdict(list))
    _half_events: list[Event] = field(default_factory=list)

    def add_events(self, events: list[Any], indices: Iterable[int] | None = None) -> None:
        """Add a list of parsed events; `indices` are theirs in the file, where they do not just count on."""
        wanted: dict[str, tuple[list[Event], list[int]]] = defaultdict(lambda: ([], []))
        numbered = enumerate(events, self.seen) if indices is None else zip(indices, events, strict=True)
        for index, event in numbered:
            kind = self._kind_of(event)
            if kind is not None:
                group, at = wanted[kind]
                group.append(event)
                at.append(index)
        self.seen += len(events)
        for kind, (group, at) in wanted.items():
            self._add_kind(kind, group, at)

    def add_block(self, kind: str, block: dict[str, IntArray]) -> None:
        """Add rows that are columns already, with the codes and thread numbers of this object."""
        self._blocks[kind].append(block)

    def append(self, other: EventColumns, first_index: int) -> None:
        """Add the columns of other events, whose indices in the file begin at `first_index`."""
        pairs, _ = other.pairs.ids
        numbers = np.array([self.pairs.number(pid, tid) for pid, tid in zip(*pairs, strict=True)], np.int32)
        codes = np.array([*self.strings.encode(other.strings.texts, len(other.strings.texts)), NONE], np.int32)
        for kind, blocks in other._blocks.items():
            for block in blocks:
                recoded = {name: codes[block[name]] for name in ("name", *TEXTS, *LABELS) if name in block}
                recoded["event_index"] = block["event_index"] + first_index
                if kind != COMMS:
                    recoded["thread"] = numbers[block["thread"]]
                self._blocks[kind].append(block | recoded)
        self.dropped += other.dropped
        self.seen += other.seen
        self.phases += other.phases
        self._half_events += other._half_events

    def finish(self) -> dict[str, dict[str, IntArray]]:
        """The columns of each kind that occurs, by start, longest first, then as in the file."""
        pairs = self._pair_half_events()
        self.add_events(pairs)
        self.seen -= len(pairs)
        self.phases -= len(pairs)
        (pids, tids), count = self.pairs.ids
        texts = self.threads.encode(zip(pids, tids, strict=True), count)
        ranks = np.array(ranks_of_threads(self.threads.texts), np.int64)
        self._of_thread: dict[str, IntArray] = {
            "text": texts,
            "rank": ranks[texts] if len(ranks) else np.zeros(count, np.int64),
            "device": parse_integers(pids),
            "stream": parse_integers([_last_number(tid) for tid in tids]),
        }
        self._kinds_with_index = (COMMS, GPU, OPS) if COMMS in self._blocks else ()
        kinds = list(self._blocks)
        if self.workers == 1:
            return {kind: self._concatenate(kind) for kind in kinds}
        # A fifth of a second for a gigabyte of text, and numpy lets other threads run meanwhile.
        with ThreadPoolExecutor(self.workers, "perfdoctor-join") as pool:
            return dict(zip(kinds, pool.map(self._concatenate, kinds), strict=True))

    def _concatenate(self, kind: str) -> dict[str, IntArray]:
        """The blocks of a kind as one, in the order of time; with event indices where collectives are found by them."""
        blocks = self._blocks.pop(kind)
        keys = {name: _pop_column(blocks, name) for name in _SORT_KEYS if name in blocks[0]}
        index = keys["event_index"] if kind in self._kinds_with_index else keys.pop("event_index")
        order = time_order(keys.get("start_ns", index), keys.get("dur_ns", index), index)
        # Column by column, so that no more than one is in memory twice.
        whole = {name: _reorder(keys.pop(name), order) for name in list(keys)}
        whole |= {name: _reorder(_pop_column(blocks, name), order) for name in list(blocks[0])}
        if kind == COMMS:
            return whole
        thread = whole["thread"]
        if kind == GPU:
            _fill_device_and_stream(whole, self._of_thread, thread)
        whole["thread"] = self._of_thread["text"][thread]
        if self._of_thread["rank"].any():
            whole["rank"] = self._of_thread["rank"][thread]
        return whole

    def _kind_of(self, event: Any) -> str | None:
        """The kind of an event; None for an event that is not wanted, after counting it."""
        if not isinstance(event, dict):
            self.dropped += 1
            return None
        phase, category = event.get("ph"), event.get("cat")
        if isinstance(phase, (list, dict)):
            self.dropped += 1
            return None
        self.phases += phase is not None
        if phase in ("B", "E"):
            self._half_events.append(event)
        if phase not in ("X", "i"):
            return None
        kind = KIND_OF_CATEGORY.get(category.lower()) if isinstance(category, str) else None
        self.dropped += isinstance(category, (list, dict)) and phase == "X"
        return kind if (kind == MEMORY) == (phase == "i") else None

    def _add_kind(self, kind: str, events: list[Event], indices: list[int]) -> None:
        """Add events of one kind as a block of columns."""
        start_ns, start_usable = parse_times([event.get("ts") for event in events])
        dur_ns, dur_usable = parse_times([0 if kind == MEMORY else event.get("dur") for event in events])
        usable = start_usable & dur_usable & (start_ns + dur_ns < LIMIT_NS)
        index = np.array(indices, np.int64)
        if not usable.all():
            self.dropped += int((~usable).sum())
            start_ns, dur_ns, index = start_ns[usable], dur_ns[usable], index[usable]
            events = [event for event, keep in zip(events, usable.tolist(), strict=True) if keep]
        if not events:
            return
        names = [event.get("name") for event in events]
        if set(map(type, names)) != {str}:
            names = list(map(to_text, names))
        block: dict[str, IntArray] = {"start_ns": start_ns, "dur_ns": dur_ns, "event_index": index}
        block["name"] = self.strings.encode(names, len(names))
        block["thread"] = self.pairs.encode(events)
        args: list[Any] = [event.get("args") for event in events]
        if set(map(type, args)) != {dict}:
            args = [each if isinstance(each, dict) else {} for each in args]
        block |= _number_columns(kind, args)
        if kind == OPS:
            for name, spellings in TEXTS.items():
                block[name] = self.strings.encode(map(to_json, _argument(args, spellings)), len(args))
        if kind in (GPU, OTHER_DEVICE):
            marks = [MARK_OF_CATEGORY.get(event["cat"].lower(), KERNEL) for event in events]
            block["kind"] = np.array(marks, np.int32)
        if kind == GPU:
            block["blocks"] = np.array([count_blocks(each.get(GRID)) for each in args], np.int64)
        self._blocks[kind].append(block)
        rows = [row for row, each in enumerate(args) if each.get(COLLECTIVE) is not None]
        if rows:
            self._add_comms([args[row] for row in rows], index[rows])

    def _add_comms(self, args: list[Any], index: IntArray) -> None:
        """Add what the arguments of some events say of collectives."""
        block: dict[str, IntArray] = {"event_index": index}
        for name, spellings in LABELS.items():
            block[name] = self.strings.encode(map(to_label, _argument(args, spellings)), len(args))
        block |= _number_columns(COMMS, args)
        self._blocks[COMMS].append(block)

    def _pair_half_events(self) -> list[Event]:
        """Complete events made of B and E events, which are rare; one without a partner is dropped."""
        timed = [(event, parse_time(event.get("ts"))) for event in self._half_events]
        known = sorted(((event, at) for event, at in timed if at is not None), key=lambda pair: pair[1])
        self.dropped += len(timed) - len(known)
        stacks: dict[str, list[tuple[Event, int]]] = defaultdict(list)
        pairs: list[Event] = []
        for event, at in known:
            stack = stacks[f"{_clean_id(event.get('pid'))}/{_clean_id(event.get('tid'))}"]
            if event["ph"] == "B":
                stack.append((event, at))
            elif stack:
                begin, since = stack.pop()
                pairs.append(begin | {"ph": "X", "dur": f"{(at - since) // 1000}.{(at - since) % 1000:03}"})
            else:
                self.dropped += 1
        self.dropped += sum(map(len, stacks.values()))
        self._half_events = []
        return pairs


def _pop_column(blocks: list[dict[str, IntArray]], name: str) -> IntArray:
    """A column of some blocks as one; the blocks lose it."""
    return np.concatenate([block.pop(name) for block in blocks])


def _reorder(column: IntArray, order: Int64Array | None) -> IntArray:
    return column if order is None else column[order]


def _number_columns(kind: str, args: list[Event]) -> dict[str, IntArray]:
    """The columns of numbers in the arguments of events of a kind."""
    return {name: parse_integers(_argument(args, spellings)) for name, spellings in NUMBERS.get(kind, {}).items()}


def _argument(args: list[Event], spellings: tuple[str, ...]) -> list[Any]:
    """The value of an argument of each event, by the first of its spellings that is there."""
    first, *others = spellings
    values = [each.get(first) for each in args]
    for other in others:
        if None in values:
            values = [each.get(other) if value is None else value for each, value in zip(args, values, strict=True)]
    return values


def _clean_id(value: object) -> int | str:
    if type(value) is int or type(value) is str:
        return value
    return to_text(value)


def _fill_device_and_stream(block: dict[str, IntArray], of_thread: dict[str, IntArray], thread: IntArray) -> None:
    """Fill device and stream of GPU items whose arguments do not say them: from their row of the timeline."""
    for name in ("device", "stream"):
        block[name] = np.where(block[name] == NONE, of_thread[name][thread], block[name])
    block["device"] = as_int32(block["device"])


def _last_number(value: object) -> object:
    """The last number in the name of a thread, the 7 of a legacy row called "stream 7"; other ids as they are."""
    match = _LAST_NUMBER.search(value) if isinstance(value, str) else None
    return match.group(1) if match else value
