"""Read a snapshot of PyTorch's CUDA allocator: the history of each device, and what it holds at the end.

The history is a ring: its beginning may be missing, and then what was allocated before is known by its end, in the
history or in the state at the end of it. Both together lead from nothing to that state::

    before the recording   +A +B        allocated without a time: freed later, or still there at the end
    history                +C -A +D -C
    state at the end       B D
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from perfdoctor.errors import TraceError
from perfdoctor.trace.arrays import NONE
from perfdoctor.trace.io.load_pickle import MAX_BYTES, load_plain_pickle
from perfdoctor.trace.io.stream import TextStream, disconnect_error
from perfdoctor.trace.tables.model import AllocatorSettings, EndState, MemoryEvents, Segments, Trace
from perfdoctor.trace.tables.string_codes import StringCodes

_MAX_ROWS = 20_000_000  # a list may stand in a thousand places of a pickle, and be in the file once
_MAX_AMOUNT = 1 << 60  # bytes, and addresses
_MAX_DEVICES = 1024
_CUDA = 1  # c10::DeviceType
_PAGE = re.compile(rb'"base64"\s*:\s*"([A-Za-z0-9+/=]+)"')
# Expandable segments are mapped and unmapped in pieces.
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
_DEFAULT_POOL = (0, 0)
_ROUNDUP_CLASSES = 16  # of roundup_power2_divisions: keys of 1 to 32768 MiB
_TORCH = re.compile(r"^.*(?:site|dist)-packages/(?=torch/)")

_Entry: TypeAlias = dict[str, Any]
_Value = TypeVar("_Value", list[Any], str)


class _Event(NamedTuple):
    """A row of `MemoryEvents` before the totals are known."""

    time_ns: int
    bytes: int
    address: int = NONE
    stream: int = NONE
    stack: int = NONE
    requested_bytes: int = 0


class _Segment(NamedTuple):
    """A row of `Segments`."""

    address: int
    bytes: int
    place: int
    stream: int
    pool: int
    is_small: bool
    is_expandable: bool


def read_snapshot(stream: TextStream) -> Trace:
    """The Trace of a snapshot, or of the page of memory_viz that holds one: memory events, and nothing on time.

    Raises:
        TraceError: It is no snapshot, or too large.
    """
    data = _read_all(stream)
    if data.lstrip()[:1] == b"<":
        data = _pickle_in_page(data, stream.path)
    root = load_plain_pickle(data, stream.path)
    try:
        return _Reader(stream.path).read(root)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError) as error:
        raise TraceError(
            f"{stream.path}: a pickle, but no snapshot of PyTorch's allocator; "
            "give the file that torch.cuda.memory._dump_snapshot writes"
        ) from error


def _read_all(stream: TextStream) -> bytes:
    source, block, data = stream.source(), memoryview(bytearray(1 << 20)), bytearray()
    while (count := source(block)) and len(data) <= 2 * MAX_BYTES:
        data += block[:count]
    stream.report_progress(last=True)
    if stream.disconnected:
        raise disconnect_error(stream)
    return bytes(data)


def _pickle_in_page(page: bytes, path: str) -> bytes:
    match = _PAGE.search(page)
    if match is None:
        raise TraceError(f"{path}: a page without a snapshot of memory in it; give a trace, or the page of memory_viz")
    try:
        return base64.b64decode(match[1], validate=True)
    except binascii.Error as error:
        raise TraceError(
            f"{path}: the snapshot in this page is damaged; give the .pickle that it was made of"
        ) from error


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.strings = StringCodes()
        self.stacks: dict[tuple[int, ...], int] = {}
        self._stack_of: dict[int, int] = {}  # by the id of a list of frames, which many entries share
        self._code_of: dict[int, int] = {}

    def read(self, root: Any) -> Trace:
        if isinstance(root, list):  # torch 1.13
            root = {"segments": root}
        segments: list[_Entry] = _check(root["segments"], list)
        histories = [_check(each, list) for each in _check(root.get("device_traces", []), list)]
        if sum(map(len, histories)) + sum(len(_check(each["blocks"], list)) for each in segments) > _MAX_ROWS:
            raise TraceError(f"{self.path}: more than {_MAX_ROWS:,} entries; record fewer of them (max_entries)")
        devices = sorted(
            {_amount(each["device"], _MAX_DEVICES) for each in segments}
            | {i for i, each in enumerate(histories) if each}
        )
        columns, ends = [], {}
        settings = _read_settings(root.get("allocator_settings"), segments)
        for device in devices:
            history = histories[device] if device < len(histories) else []
            own = [each for each in segments if each["device"] == device]
            found, ends[device] = self._read_device(history, own, settings)
            columns.append(found | {"device": np.full(len(found["time_ns"]), device, np.int64)})
        if not columns:
            raise TraceError(f"{self.path}: a snapshot without any memory in it; take it while tensors are on the GPU")
        whole: dict[str, Any] = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
        whole |= {name: whole[name].astype(np.int32) for name in ("stack", "device")}
        count = len(whole["time_ns"])
        trace = Trace(
            self.path,
            strings=tuple(self.strings.texts),
            memory=MemoryEvents(
                **whole, device_type=np.full(count, _CUDA, np.int32), thread=np.full(count, NONE, np.int32)
            ),
            stacks=tuple(self.stacks),
            memory_ends=ends,
        )
        trace.freeze()
        return trace

    def _read_device(
        self, history: list[_Entry], segments: list[_Entry], settings: AllocatorSettings
    ) -> tuple[dict[str, Any], EndState]:
        """The columns of a device's events, those of before the recording first, and its end."""
        events: list[_Event] = []
        reservations: list[_Segment] = []
        reserved: list[int] = []  # at each event how much more is reserved than at the beginning of the history
        alive: dict[int, tuple[int, int]] = {}
        before: list[_Event] = []
        is_consistent, change = True, 0
        free_bytes: int | None = None
        for entry in history:
            action = _check(entry["action"], str)
            if action in _RESERVED:
                size = _RESERVED[action] * _amount(entry["size"])
                stream, is_mapped = _stream(entry), action.endswith("map")
                reservations.append(
                    _Segment(
                        _amount(entry["addr"]), size, len(events), stream, 0, is_small=False, is_expandable=is_mapped
                    )
                )
                change += size
                continue
            time_ns = _amount(entry.get("time_us", 0)) * 1000 or NONE
            if action == "oom":
                stack, size = self._stack(entry), _amount(entry["size"])
                event = _Event(time_ns, 0, stream=_stream(entry), stack=stack, requested_bytes=size)
                free_bytes = _amount(entry["device_free"]) if "device_free" in entry else None
            elif action in ("alloc", "free_completed"):
                address, size = _amount(entry["addr"]), _amount(entry["size"])
                is_free = action == "free_completed"
                event = _Event(time_ns, -size if is_free else size, address, _stream(entry), self._stack(entry))
                if not is_free:
                    is_consistent &= address not in alive
                    alive[address] = size, event.stack
                elif address in alive:
                    is_consistent &= alive.pop(address)[0] == size
                else:
                    before.append(_Event(NONE, size, address))
            else:  # free_requested: the memory is in use until the streams that use it are done; snapshot
                continue
            events.append(event)
            reserved.append(change)
        blocks = self._active_blocks(segments)
        is_consistent &= all(blocks.get(address, (None,))[0] == size for address, (size, _) in alive.items())
        before += [_Event(NONE, block[0], at, stack=block[1]) for at, block in blocks.items() if at not in alive]
        end_bytes = sum(size for size, _ in blocks.values())
        end_reserved = sum(_amount(each["total_size"]) for each in segments)
        events = before + events
        if end_reserved + sum(abs(event.bytes) for event in events) > _MAX_AMOUNT:
            raise ValueError
        found = {name: np.array([getattr(event, name) for event in events], np.int64) for name in _Event._fields}
        allocated = np.cumsum(found["bytes"], dtype=np.int64)
        reserved_bytes = np.array([0] * len(before) + reserved, np.int64) + (end_reserved - change)
        is_consistent &= bool((allocated <= reserved_bytes).all())
        found |= {"allocated_bytes": allocated, "reserved_bytes": reserved_bytes}
        end = EndState(
            end_bytes,
            end_reserved,
            is_consistent,
            len(before),
            free_bytes,
            _segments(_end_segments(segments, len(events) - len(before))),
            _segments(reservations),
            settings,
        )
        return found, end

    def _active_blocks(self, segments: Iterable[_Entry]) -> dict[int, tuple[int, int]]:
        """By its address what each block in use was requested with, and the stack of its allocation."""
        found = {}
        for segment in segments:
            address = _amount(segment.get("address", 0))
            for block in segment["blocks"]:
                size = _amount(block["size"])
                if _check(block["state"], str) != "inactive":
                    at = _amount(block.get("address", address))
                    found[at] = _amount(block.get("requested_size", size)), self._stack(block)
                address += size
        return found

    def _stack(self, entry: _Entry) -> int:
        """The number of an entry's stack; NONE where it has no frames."""
        frames = entry.get("frames")
        if not frames:
            history = entry.get("history")  # of blocks, up to torch 2.0
            frames = history[0].get("frames") if history else None
            if not frames:
                return NONE
        key = id(frames)
        if key not in self._stack_of:
            codes = tuple(map(self._frame, _check(frames, list)))
            self._stack_of[key] = self.stacks.setdefault(codes, len(self.stacks))
        return self._stack_of[key]

    def _frame(self, frame: _Entry) -> int:
        key = id(frame)
        if key not in self._code_of:
            file = _TORCH.sub("", _check(frame["filename"], str).replace("\\", "/"))
            line = frame["line"] if isinstance(frame["line"], int) else 0  # C++ frames: some have none
            text = f"{file}({max(line, 0)}): {_check(frame['name'], str)}"
            self._code_of[key] = self.strings[text.encode("utf-8", errors="replace").decode()]
        return self._code_of[key]


def _end_segments(segments: Iterable[_Entry], place: int) -> Iterable[_Segment]:
    pools: dict[tuple[int, ...], int] = {_DEFAULT_POOL: 0}
    for each in segments:
        pool = tuple(map(_amount, each.get("segment_pool_id") or _DEFAULT_POOL))
        yield _Segment(
            _amount(each.get("address", 0)),
            _amount(each["total_size"]),
            place,
            _stream(each),
            pools.setdefault(pool, len(pools)),
            is_small=each.get("segment_type") == "small",
            is_expandable=each.get("is_expandable") is True,
        )


def _segments(rows: Iterable[_Segment]) -> Segments:
    columns = np.array(list(rows), np.int64).reshape(-1, len(_Segment._fields)).T
    whole: dict[str, Any] = dict(zip(_Segment._fields, columns, strict=True))
    return Segments(**whole | {name: whole[name].astype(bool) for name in ("is_small", "is_expandable")})


def _stream(entry: _Entry) -> int:
    return _amount(entry.get("stream", 0))


def _read_settings(entry: _Entry | None, segments: list[_Entry]) -> AllocatorSettings:
    if entry is None:  # before torch 2.5
        return AllocatorSettings(expandable_segments=any(each.get("is_expandable") is True for each in segments))
    max_split, divisions = entry.get("max_split_size", NONE), entry.get("roundup_power2_divisions", {})
    threshold = entry.get("garbage_collection_threshold", 0)
    return AllocatorSettings(
        expandable_segments=entry.get("expandable_segments") is True,
        max_split_bytes=None if max_split == NONE else _amount(max_split),
        garbage_collection_threshold=threshold if 0 < threshold < 1 else 0.0,
        roundup_power2_divisions=tuple(_amount(divisions.get(str(1 << i), 0)) for i in range(_ROUNDUP_CLASSES))
        if any(divisions.values())
        else (),
    )


def _check(value: Any, kind: type[_Value]) -> _Value:
    """The value, which is of a kind: a list of lists may stand for a text, and would be written as one without end.

    Raises:
        TypeError: It is of another kind.
    """
    if not isinstance(value, kind):
        raise TypeError
    return value


def _amount(value: Any, limit: int = _MAX_AMOUNT) -> int:
    """The value, which is a whole number below a limit.

    Raises:
        ValueError: It is none.
    """
    if not isinstance(value, int) or not 0 <= value < limit:
        raise ValueError
    return value
