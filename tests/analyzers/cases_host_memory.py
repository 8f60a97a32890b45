"""Cases of PD709: copies of the data set in workers, /dev/shm, and the limit of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfdoctor.testing import TraceBuilder
from perfdoctor.testing.check_rule import build_healthy_trace
from perfdoctor.testing.rule_cases import ExpectedFinding, RuleCase

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


def found(title: str, severity: str = "info", **more: Any) -> tuple[ExpectedFinding, ...]:
    """One finding of a title, which costs no time."""
    return (ExpectedFinding(severity, 0, location="train.py:12", title=title, **more),)


def case(name: str, facts: dict[str, Any], expected: tuple[ExpectedFinding, ...] = ()) -> RuleCase:
    return RuleCase("PD709", name, training, expected, facts=facts)


COPIED = "Each of 4 workers copies the 1,000,000 objects in the list 'samples' of the data set Samples: 2 GB"
PD709 = [
    case(
        "a-list-that-each-worker-has-copied",
        host(560, 570, 580, 590, objects=OBJECTS),
        found(COPIED, saved_bytes=(1600 * MB, 2000 * MB, 2500 * MB), fix="samples = np.array(samples)"),
    ),
    case(
        "a-list-that-is-copied-in-part",
        host(300, 300, 300, 300, objects=OBJECTS),
        found("1.2 GB together", saved_bytes=(960 * MB, 1200 * MB, 2500 * MB)),
    ),
    case(
        "workers-of-an-epoch-before",
        host(560, 570, 40, 30, objects=OBJECTS, workers=2),
        found("Each of 2 workers", saved_bytes=(800 * MB, 1000 * MB, 1250 * MB)),
    ),
    case(
        "shared-memory-is-full", host(50, 50, shared=(64 * MB, 63 * MB)), found("63 MB of 64 MB of /dev/shm", "medium")
    ),
    case("file-descriptors-run-out", host(50, files=(1024, 1020)), found("1,020 of 1,024 were open", "medium")),
    case("many-files-without-a-limit", host(50, files=(None, 5000))),
    case("a-worker-that-died-of-it", host(50, signals=[SIGBUS]), found("1 worker died of it", "high")),
    case(
        "full-and-two-workers-died-of-it",
        host(50, 50, shared=(64 * MB, 64 * MB), signals=[SIGBUS, SIGBUS]),
        found("64 MB of 64 MB of /dev/shm were used, and 2 workers died of it", "high"),
    ),
    case(
        "near-the-limit",
        host(400, 600, group={"version": 2, "limit_bytes": 4 * GB, "peak_bytes": 3_800 * MB}, pinned_bytes=GB),
        found(
            "3.8 GB of 4 GB", "medium", evidence={"the program": GB, "its workers": GB, "pinned memory of PyTorch": GB}
        ),
    ),
    case(
        "a-process-that-was-killed",
        host(400, group={"version": 1, "limit_bytes": 4 * GB, "peak_bytes": 3 * GB, "oom_kills": 2}),
        found("the system killed 2 processes", "high"),
    ),
    case(
        "a-dictionary",
        host(300, 310, objects={**OBJECTS, "type": "dict", "attribute": "index", "bytes": 280 * MB}),
        found("objects in the dict 'index'", fix="np.array(list(index.values()))"),
    ),
    case(
        "a-killed-process-and-no-limit-that-is-known",
        host(group={"version": 2, "limit_bytes": None, "peak_bytes": 30 * GB, "oom_kills": 1}),
        found("of an unknown size in the control group, and the system killed 1 process in it", "high"),
    ),
    case("arrays", host(90, 90, 90, 90)),
    case("workers-that-have-copied-little", host(90, 90, 90, 90, objects=OBJECTS)),
    case("a-small-list", host(90, 90, objects={**OBJECTS, "bytes": 60 * MB})),
    case("no-workers", host(objects=OBJECTS, workers=0)),
    case("private-pages-are-not-known", host(objects=OBJECTS, workers=4)),
    case("room-is-left", host(50, group={"version": 2, "limit_bytes": 4 * GB, "peak_bytes": 3 * GB, "oom_kills": 0})),
    case("no-limit", host(50, group={"version": 2, "limit_bytes": None, "peak_bytes": 30 * GB, "oom_kills": 0})),
    case("a-worker-that-its-user-has-killed", host(50, signals=[SIGKILL])),
    case("shared-memory-is-not-known", host(50, shared=(0, 0))),
    case("memory-was-not-recorded", {**host(560, 570, objects=OBJECTS), "memory": {}}),
]
