"""Reads dumps of PyTorch's flight recorder: the last collectives that a rank has called, and which of them have ended.

Pickles as torch writes them (NCCL's at a timeout, gloo's on demand; format 2.0 and later) and the JSON form of one.
`pg_id` in them is local to a rank: a group is known by its description and its ranks, and by its name where gloo's
dumps have no ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from perfdoctor.errors import TraceError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.io.load_pickle import load_plain_pickle
from perfdoctor.trace.io.untrusted_files import read_beside_trace

_INSTEAD = "give a dump of PyTorch's flight recorder (nccl_trace_rank_N)"
# Of calls that have ended the last ones: they say how far a rank came, and where two ranks differed first.
_MAX_ENDED_CALLS = 2000
_MAX_RANKS, _MAX_FRAMES = 1_000_000, 200
_RANKS = re.compile(r"\d+")
# Backends whose entries keep the state "scheduled": what is retired has ended there.
_WITHOUT_STATES = ("gloo",)


@frozen_dataclass
class StackFrame:
    """A line of a stack."""

    file: str
    line: int
    function: str


@frozen_dataclass
class Group:
    """A process group.

    Attributes:
        name: Its name, which other ranks need not have for it.
        description: What the program calls it.
        ranks: Its ranks in the job; empty where the dump does not say them.
    """

    name: str
    description: str
    ranks: tuple[int, ...] = ()


@frozen_dataclass
class Call:
    """A collective, or a send or a receive, that a rank has called.

    Attributes:
        group: The name of its group on this rank.
        backend: nccl, gloo and so on.
        name: all_reduce, send 0->3 and so on, without the backend.
        number: Its sequence number in the group, of collectives or of sends and receives.
        is_p2p: Whether it is a send or a receive.
        order: Its place among all calls of the rank.
        has_ended: Whether it has ended on this rank.
        created_ns: When it was called, since the epoch; 0 for unknown.
        frames: The stack of the call, innermost first; empty where it was not recorded.
    """

    group: str
    backend: str
    name: str
    number: int
    is_p2p: bool
    order: int
    has_ended: bool
    created_ns: int
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    frames: tuple[StackFrame, ...] = ()


@frozen_dataclass
class Dump:
    """The flight recorder of one rank.

    Attributes:
        groups: The groups of the rank by name.
        calls: Those that have not ended, and the last ones that have, in the order of the program.
        entered: The number of the last collective that the rank has called in a group, by its name.
    """

    path: str
    rank: int
    version: str
    groups: Mapping[str, Group]
    calls: tuple[Call, ...]
    entered: Mapping[str, int]

    @property
    def oldest_unfinished(self) -> Call | None:
        """The first call that has not ended; None where all have."""
        return next((call for call in self.calls if not call.has_ended), None)


def read_dump(path: Path, rank: int) -> Dump:
    """A dump of the rank, which its file does not name.

    Raises:
        TraceError: It cannot be read, or is no such dump.
    """
    try:
        data = read_beside_trace(path)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error}); {_INSTEAD}") from error
    if data[:1] == b"\x80":
        plain = load_plain_pickle(data, str(path), "dump", _INSTEAD)
    else:
        try:
            plain = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise TraceError(f"{path}: neither a pickle nor JSON, or cut short; {_INSTEAD}") from error
    try:
        return _parse(plain, str(path), rank)
    except (TypeError, KeyError, AttributeError, ValueError, IndexError) as error:
        raise TraceError(
            f"{path}: no dump of the flight recorder, or of a form that is not known; {_INSTEAD}"
        ) from error


def _parse(plain: Any, path: str, rank: int) -> Dump:
    entries = plain.get("entries", [])
    if not isinstance(entries, list) or not ({"entries", "pg_config"} & set(plain)):
        raise ValueError("it has no entries")
    groups = {str(name): _parse_group(str(name), each) for name, each in (plain.get("pg_config") or {}).items() if name}
    calls = sorted((_parse_call(each) for each in entries), key=lambda call: call.order)
    names: dict[str, str] = {}
    entered: dict[str, int] = {}
    for entry, call in zip(sorted(entries, key=lambda each: each["record_id"]), calls, strict=True):
        name, description = map(str, entry["process_group"])
        groups.setdefault(name, Group(name, description))
        names[str(entry["pg_id"])] = name
        if not call.is_p2p:
            entered[name] = max(call.number, entered.get(name, 0))
    # The last call may be no entry any more.
    for number, status in (plain.get("pg_status") or {}).items():
        if str(number) in names and any(not c.is_p2p for c in calls if c.group == names[str(number)]):
            last = int(status["last_enqueued_collective"])
            name = names[str(number)]
            # Where sends are counted as well, it is their number.
            if not any(call.is_p2p for call in calls if call.group == name):
                entered[name] = max(last, entered.get(name, 0))
    ended = [call for call in calls if call.has_ended][-_MAX_ENDED_CALLS:]
    kept = sorted((*ended, *(call for call in calls if not call.has_ended)), key=lambda call: call.order)
    return Dump(path, rank, str(plain.get("version", "")), groups, tuple(kept), entered)


def _parse_group(name: str, plain: Mapping[str, Any]) -> Group:
    ranks = plain.get("ranks") or ""
    numbers = _RANKS.findall(ranks) if isinstance(ranks, str) else ranks
    return Group(name, str(plain.get("desc", "")), tuple(sorted(int(each) for each in numbers[:_MAX_RANKS])))


def _parse_call(entry: Mapping[str, Any]) -> Call:
    backend, _, name = str(entry["profiling_name"]).rpartition(":")
    is_p2p = bool(entry.get("is_p2p", name.startswith(("send ", "recv "))))
    has_ended = bool(entry.get("retired")) if backend in _WITHOUT_STATES else entry["state"] == "completed"
    number = entry["p2p_seq_id" if is_p2p else "collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]
    return Call(
        group=str(entry["process_group"][0]),
        backend=backend,
        name=name,
        number=int(number),
        is_p2p=is_p2p,
        order=int(entry["record_id"]),
        has_ended=has_ended,
        created_ns=int(entry.get("time_created_ns") or 0),
        input_sizes=_parse_sizes(entry.get("input_sizes")),
        output_sizes=_parse_sizes(entry.get("output_sizes")),
        input_types=tuple(map(str, entry.get("input_dtypes") or ())),
        output_types=tuple(map(str, entry.get("output_dtypes") or ())),
        frames=tuple(
            StackFrame(str(each["filename"]), int(each["line"]), str(each["name"]))
            for each in (entry.get("frames") or ())[:_MAX_FRAMES]
        ),
    )


def _parse_sizes(plain: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in each) for each in plain or ())
