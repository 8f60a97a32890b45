"""Cases of PD709: copies of the data set in workers, /dev/shm, and the limit of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace

MB, GB = 10**6, 10**9
ITEMS = {"file": "train.py", "line": 12, "function": "__getitem__"}
OBJECTS = {"attribute": "samples", "type": "list", "length": 1_000_000, "bytes": 500 * MB}
SIGKILL, SIGBUS = 9, 7


def training() -> TraceBuilder:
    """A healthy training: the cases differ in their facts alone."""
    return build_healthy_trace()


def host(
    *private_mb: float,
    objects: Mapping[str, Any] | None = None,
    workers: int | None = None,
    shared: tuple[int, int] = (8 * GB, GB),
    group: Mapping[str, Any] | None = None,
    signals: Sequence[int] = (),
    files: tuple[int | None, int | None] = (1024, 300),
    **more: Any,
) -> dict[str, Any]:
    """Facts of a program with a worker for each size in MB, which it has written and shares with nobody."""
    processes = [
        {"pid": 100 + number, "kind": "worker", "samples": 9, "peak_bytes": round(size * MB)}
        | {"private_last_bytes": round(size * MB)}
        for number, size in enumerate(private_mb)
    ]
    program = {"pid": 99, "kind": "program", "samples": 9, "peak_bytes": GB, "private_last_bytes": GB}
    return {
        "memory": {
            "host": {
                "status": "sampled",
                "samples": 9,
                "processes": [program, *processes],
                "shared_memory_bytes": shared[0],
                "shared_memory_peak_bytes": shared[1],
                "open_files_limit": files[0],
                "open_files_peak": files[1],
                "group": group,
                "killed_workers": [{"pid": 100, "signal": each} for each in signals],
            },
            **more,
        },
        "loaders": [
            {
                "dataset": "Samples",
                "num_workers": len(private_mb) if workers is None else workers,
                "items_location": ITEMS,
                "wait_ns": 1,
                "dataset_objects": objects,
            }
        ],
    }
