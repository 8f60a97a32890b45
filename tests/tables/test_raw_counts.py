"""The figures of tables against a count over the raw JSON of real traces, which knows nothing of this package.

Only the analysed window, and the shift between the clocks of CPU and GPU, are taken from the rank: what lies in the
window is found, added up and joined here once more, in plain Python, by what the profiler documents of its files.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from real_traces import read_once

from perfdoctor.rank import Rank
from perfdoctor.tables.catalog import build_table
from perfdoctor.trace.tables import intervals as iv

pytestmark = pytest.mark.corpus

TRACES = (
    "h100-timesformer-bf16.json.gz",
    "h100-qwen-bf16.json.gz",
    "h100-nsfw-vit-bf16.json.gz",
    "h100-bert-small-bf16.json.gz",
    "gtx1650-clock-skew.json.gz",
    "gp100-user-annotation.json.gz",
    "a100-sam-bf16.json.gz",
    "a100-nccl-config/rank0.json.gz",
    "rtx4090-llama-2ranks/rank0.json.gz",
    "v100-torchrec-4ranks/rank0.json.gz",
    "mi300x-resnet-ddp.json.gz",
)
WITH_MODULES = ("h100-timesformer-bf16.json.gz", "h100-qwen-bf16.json.gz", "gtx1650-clock-skew.json.gz")
WITH_SIZES = ("a100-nccl-config/rank0.json.gz", "mi300x-resnet-ddp.json.gz")
DTYPE_BYTES = {"Float": 4, "BFloat16": 2, "Long": 8}

Event = dict[str, Any]


def to_ns(microseconds: str | int) -> int:
    """The time of an event in the file, exactly; three decimals at most are written."""
    whole, _, fraction = str(microseconds).partition(".")
    assert len(fraction) <= 3
    return int(whole) * 1000 + int(fraction.ljust(3, "0"))


class Raw:
    """The events of a file by category, and those of the GPU in the window of its rank."""

    def __init__(self, path: Path) -> None:
        text = json.loads(gzip.decompress(path.read_bytes()), parse_float=str)
        events = [each for each in text["traceEvents"] if each.get("ph") == "X"]
        self.of: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            event["start"] = to_ns(event["ts"])
            event["ns"] = to_ns(event["dur"])
            self.of[event.get("cat", "")].append(event)
        self.calls = self.of["cuda_runtime"] + self.of["cuda_driver"]
        self.rank = Rank(read_once(path))
        shift = self.rank.clock_shift.shift_ns
        self.window = [(begin - shift, end - shift) for begin, end in self.rank.window.tolist()]
        self.items = [*self.of["kernel"], *self.of["gpu_memcpy"], *self.of["gpu_memset"]]

    def inside(self, *categories: str) -> list[Event]:
        """The events of some categories that start in the window."""
        found = (event for category in categories for event in self.of[category])
        return [event for event in found if any(begin <= event["start"] < end for begin, end in self.window)]

    def rows(self, name: str, by: str | None = None) -> list[dict[str, Any]]:
        """The rows of a table of this package."""
        return build_table(self.rank, name, by).rows


@cache
def raw_of(path: Path) -> Raw:
    return Raw(path)


@pytest.fixture(scope="module", autouse=True)
def _forget() -> Iterator[None]:
    yield
    raw_of.cache_clear()


@pytest.fixture
def raw(corpus: Path, request: pytest.FixtureRequest) -> Raw:
    return raw_of(corpus / request.param)


def each(*files: str) -> Callable[..., Any]:
    return pytest.mark.parametrize("raw", files, indirect=True)


@each(*TRACES)
def test_kernels_by_name(raw: Raw) -> None:
    count: Counter[str] = Counter()
    time_ns: Counter[str] = Counter()
    for event in raw.inside("kernel"):
        count[event["name"]] += 1
        time_ns[event["name"]] += event["ns"]
    rows = raw.rows("kernels")
    assert len(rows) == len(count) > 0
    assert {row["name"]: row["window_count"] for row in rows} == count
    assert {row["name"]: row["window_ns"] for row in rows} == time_ns


@each(*TRACES)
def test_copies_by_direction_with_their_bytes(raw: Raw) -> None:
    directions = {"HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD"}
    counted: Counter[str | None] = Counter()
    time_ns: Counter[str | None] = Counter()
    size: Counter[str | None] = Counter()
    for event in raw.inside("gpu_memcpy", "gpu_memset"):
        found = re.search(r"([HDP]to[HDP])|Copy(\w+)", event["name"]) if event["cat"] == "gpu_memcpy" else None
        direction = None if found is None else found[1] or directions[found[2]]
        counted[direction] += 1
        time_ns[direction] += event["ns"]
        size[direction] += event["args"].get("bytes", 0)
    for by in ("kind", "size"):
        ours: dict[str, Counter[str | None]] = defaultdict(Counter)
        for row in raw.rows("copies", by):
            for name in ("window_count", "window_ns", "bytes"):
                ours[name][row["direction"]] += row[name] or 0
        assert (ours["window_count"], ours["window_ns"], ours["bytes"]) == (counted, time_ns, size)


@each(*TRACES)
def test_collectives_by_kind(raw: Raw) -> None:
    kinds = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}
    kinds |= {"Broadcast": "broadcast", "SendRecv": "send_recv"}
    count: Counter[str] = Counter()
    for event in raw.inside("kernel"):
        found = re.search(r"(?i:[nr]ccl)\w*?_?(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv)", event["name"])
        if found:
            count[kinds[found[1]]] += 1
    # One kernel of NCCL sends and receives, whatever for: torchrec's are the pieces of an all-to-all. RCCL's generic
    # one does anything.
    known = {row["name"]: row["window_count"] for row in raw.rows("collectives")}
    if "all_to_all" in known:
        known["send_recv"] = known.pop("all_to_all")
    if not any("ncclDevKernel_Generic" in event["name"] for event in raw.inside("kernel")):
        assert known == count


@each(*WITH_SIZES)
def test_collectives_by_size(raw: Raw) -> None:
    count: Counter[tuple[int, str]] = Counter()
    time_ns: Counter[tuple[int, str]] = Counter()
    for event in raw.inside("kernel"):
        args = event["args"]
        if "Collective name" in args:
            key = args["In msg nelems"] * DTYPE_BYTES[args["dtype"]], args["dtype"]
            count[key] += 1
            time_ns[key] += event["ns"]
    ours_count: Counter[tuple[int, str]] = Counter()
    ours_ns: Counter[tuple[int, str]] = Counter()
    for row in raw.rows("collectives", "size"):
        ours_count[row["message_bytes"], row["dtype"]] += row["window_count"]
        ours_ns[row["message_bytes"], row["dtype"]] += row["window_ns"]
    assert len(count) > 2
    assert (ours_count, ours_ns) == (count, time_ns)


@each(*TRACES)
def test_gaps_are_the_window_without_the_items_in_it(raw: Raw) -> None:
    idle_ns = 0
    spans = sorted((event["start"], event["start"] + event["ns"]) for event in raw.items)
    for begin, end in raw.window:
        until = begin
        for start, stop in spans:
            if stop > until and start < end:
                idle_ns += max(start - until, 0)
                until = max(until, min(stop, end))
        idle_ns += max(end - until, 0)
    for by in ("cause", "root"):
        assert sum(row["window_ns"] for row in raw.rows("gaps", by)) == idle_ns
    assert sum(row["length_ns"] for row in raw.rows("gaps", "gap")) == idle_ns


def test_gaps_of_traces_without_steps_are_the_idle_time_of_the_reference(corpus: Path) -> None:
    with (corpus.parent / "reference" / "timeline.csv").open() as file:
        reference = {row["trace"]: float(row["idle_ms"]) for row in csv.DictReader(file)}
    compared = 0
    for name in (*TRACES, "b200-eager.json.gz"):
        raw = raw_of(corpus / name)
        if not raw.rank.steps.count:
            idle_ns = sum(row["window_ns"] for row in raw.rows("gaps"))
            # What happens once is left out: the GPU idles in it, or runs a collective while code is loaded.
            gpu, left_out = raw.rank.trace.gpu, iv.subtract(raw.rank.recorded_window, raw.rank.window)
            idle_ns += iv.total(iv.subtract(left_out, iv.union(gpu.start_ns, gpu.end_ns)))
            # The reference adds microseconds since the epoch in floating point, which resolves a quarter of one.
            assert idle_ns / 1e6 == pytest.approx(reference[name], abs=5e-3)
            compared += 1
    assert compared >= 3


class Launches:
    """Where on the CPU each item was launched, by the ids in the file."""

    def __init__(self, raw: Raw) -> None:
        self.call_of = {event["args"]["correlation"]: event for event in raw.calls if "correlation" in event["args"]}
        self.op_of = {
            event["args"]["External id"]: event for event in raw.of["cpu_op"] if "External id" in event["args"]
        }

    def find(self, item: Event) -> Event | None:
        args = item["args"]
        call = self.call_of.get(args.get("correlation"))
        if call is not None:
            return call
        external = args.get("External id")
        return None if external == args.get("correlation") else self.op_of.get(external)


def around(events: list[Event], at: Event) -> list[Event]:
    """The events around the beginning of another one on its thread, the outermost first."""
    found = [e for e in events if e["tid"] == at["tid"] and e["start"] <= at["start"] < e["start"] + e["ns"]]
    return sorted(found, key=lambda e: (e["start"], -e["ns"]))


@each(*WITH_MODULES)
def test_modules_of_programs_without_a_backward_pass(raw: Raw) -> None:
    modules = [event for event in raw.of["python_function"] if event["name"].startswith("nn.Module: ")]
    launches = Launches(raw)
    inclusive: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for item in raw.inside("kernel", "gpu_memcpy", "gpu_memset"):
        launch = launches.find(item)
        names = [event["name"].removeprefix("nn.Module: ") for event in around(modules, launch)] if launch else []
        for name in set(names):
            inclusive[name] += item["ns"]
        own[names[-1] if names else ""] += item["ns"]
    rows = [row for row in raw.rows("modules") if row["path"]]
    ours: Counter[str] = Counter()
    for row in rows:
        ours[row["name"]] += row["window_ns"]
    assert +ours == inclusive
    assert len(inclusive) > 0
    outside = sum(row["window_ns"] for row in raw.rows("modules") if not row["path"])
    assert outside == own[""]


class Modules:
    """Which module each item belongs to, by the events of modules and the numbers of autograd."""

    def __init__(self, raw: Raw) -> None:
        self.calls = [event for event in raw.of["python_function"] if event["name"].startswith("nn.Module: ")]
        self.nodes: list[Event] = []
        self.forward_ops: dict[int, list[Event]] = defaultdict(list)
        is_node = re.compile(r"^autograd::engine|^torch::autograd::|Backward\d*$")
        for op in raw.of["cpu_op"]:
            if is_node.search(op["name"]):
                self.nodes.append(op)
            elif "Sequence number" in op["args"]:
                self.forward_ops[op["args"]["Sequence number"]].append(op)

    def innermost(self, at: Event) -> str | None:
        calls = around(self.calls, at)
        return calls[-1]["name"].removeprefix("nn.Module: ") if calls else None

    def find(self, launch: Event) -> tuple[bool, str | None]:
        """Whether a backward pass launched it, and the module."""
        nodes, name = around(self.nodes, launch), self.innermost(launch)
        numbered = [node for node in nodes if "Sequence number" in node["args"]]
        if name is None and numbered:
            node = numbered[-1]
            made = [op for op in self.forward_ops[node["args"]["Sequence number"]] if op["start"] < node["start"]]
            name = self.innermost(max(made, key=lambda op: op["start"])) if made else None
        return bool(nodes), name


@each("mi300x-resnet-ddp.json.gz")
def test_modules_of_a_training_with_checkpoints(raw: Raw) -> None:
    launches, modules = Launches(raw), Modules(raw)
    counted: Counter[tuple[bool, str | None]] = Counter()
    for item in raw.inside("kernel", "gpu_memcpy", "gpu_memset"):
        launch = launches.find(item)
        if launch is not None:
            counted[modules.find(launch)] += item["ns"]
    rows = raw.rows("modules")
    around_others = {row["parent"] for row in rows}
    leaves = [row for row in rows if row["path"] and row["path"] not in around_others]
    scale = raw.rank.per_step(raw.rank.window_ns) / raw.rank.window_ns
    assert len(leaves) > 40
    for row in leaves:
        for in_backward, column in ((True, "backward_ns"), (False, "forward_ns")):
            assert row[column] == pytest.approx(counted[in_backward, row["name"]] * scale, abs=1)
