"""Dumps of the flight recorder in the form in which torch writes them, in a few words."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_700_000_000_000_000_000
WORLD = (0, 1, 2)


def call(
    name: str = "all_reduce",
    number: int = 1,
    *,
    state: str = "scheduled",
    sizes: Sequence[int] = (4,),
    dtype: str = "Float",
    group: tuple[str, str] = ("0", "default_pg"),
    line: int | None = 30,
    record: int | None = None,
    backend: str = "nccl",
) -> dict[str, Any]:
    """An entry of a dump."""
    is_p2p = name.startswith(("send", "recv"))
    frames = [
        {"name": "all_reduce", "filename": "/lib/site-packages/torch/distributed/distributed_c10d.py", "line": 3245},
        {"name": "step", "filename": "/home/me/train.py", "line": line},
    ]
    return {
        **({} if line is None else {"frames": frames}),
        "record_id": number if record is None else record,
        "pg_id": int(group[0]),
        "process_group": group,
        "collective_seq_id": 0 if is_p2p else number,
        "p2p_seq_id": number if is_p2p else 0,
        "op_id": number,
        "profiling_name": f"{backend}:{name}",
        "time_created_ns": START_NS + number,
        "input_sizes": [list(sizes)],
        "input_dtypes": [dtype],
        "output_sizes": [list(sizes)],
        "output_dtypes": [dtype],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": START_NS if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": is_p2p,
    }


def dump(
    *entries: dict[str, Any], groups: Mapping[str, tuple[str, Sequence[int]]] | None = None, version: str = "2.9"
) -> dict[str, Any]:
    """A dump with these entries; without groups of the default one."""
    known = groups or {"0": ("default_pg", WORLD)}
    config = {name: {"name": name, "desc": text, "ranks": str(list(ranks))} for name, (text, ranks) in known.items()}
    return {
        "version": version,
        "pg_config": config,
        "pg_status": {},
        "nccl_version": "2.21.5",
        "entries": list(entries),
    }


def write_dumps(folder: Path, dumps: Mapping[int, dict[str, Any]], prefix: str = "nccl_trace_rank_") -> Path:
    """Write each as its rank does; torch's own pickler writes protocol 2 without nested tuples in the memo."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, each in dumps.items():
        (folder / f"{prefix}{rank}").write_bytes(pickle_like_torch(each))
    return folder


def pickle_like_torch(value: Any) -> bytes:
    """The pickle as c10's Pickler writes it: a pair of texts is no entry of the memo."""
    texts: dict[str, int] = {}

    def write(each: Any) -> bytes:
        if isinstance(each, dict):
            return b"}(" + b"".join(write(key) + write(item) for key, item in each.items()) + b"u"
        if isinstance(each, list):
            return b"](" + b"".join(map(write, each)) + b"e"
        if isinstance(each, tuple):
            return b"".join(map(write, each)) + b"\x86"
        if isinstance(each, str) and each in texts:
            return b"h" + bytes([texts[each]]) if texts[each] < 256 else b"j" + texts[each].to_bytes(4, "little")
        if isinstance(each, str):
            texts[each] = place = len(texts)
            put = b"q" + bytes([place]) if place < 256 else b"r" + place.to_bytes(4, "little")
            return b"X" + len(each.encode()).to_bytes(4, "little") + each.encode() + put
        return pickle.dumps(each, 2)[2:-1]

    return b"\x80\x02" + write(value) + b"."
