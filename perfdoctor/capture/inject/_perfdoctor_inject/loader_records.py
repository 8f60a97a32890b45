"""What is known of each DataLoader: which lines made and use it, its settings and waits, what a batch takes to load.

And the Python objects that its data set holds: each has a count of its references, which reading it writes to. So a
forked worker copies the page of every object that it reads, and a spawned one has all of them from the start. Arrays
and tensors are one object for all of their values, whose pages stay shared.
"""

from __future__ import annotations

import statistics
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple

import torch

from .user_code import Location, code_location, user_location
from .worker_fetches import Fetch, local_fetches, read_fetches

LOADER_SETTINGS = [
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "timeout",
]
# What stands in facts.json as the record has it.
TOTALS = (
    *("location", "created", "iterations", "batches", "wait_ns", "wait_cpu_ns", "longest_wait_ns", "first_batch_ns"),
    *("batch_bytes", "batch_tensors"),
)
# Number of batches whose waits are kept one by one, for medians.
MAX_BATCHES_KEPT = 2000
# A loop that waits in `__next__` for less than this without computing has found its batch ready: a queue that is empty
# costs a switch to the worker and back, 0.05 ms and more.
READY_NS = 50_000
# Restarts of workers that are kept, one by one, for medians.
MAX_RESTARTS_KEPT = 200


class Wait(NamedTuple):
    """One call of `__next__`, in nanoseconds.

    Attributes:
        wall_ns: How long it took.
        cpu_ns: CPU time of the training thread in it.
        process_cpu_ns: CPU time of the process in it.
        queued_ns: How long the training thread waited for a core in it; None where the system does not say it.
        fetch_ns: The part of it in which this thread itself fetched a batch; 0 with workers.
        collate_ns: The part of that in `collate_fn`.
        sampler_ns: The part of it in the sampler.
    """

    wall_ns: int
    cpu_ns: int
    process_cpu_ns: int
    queued_ns: int | None = None
    fetch_ns: int = 0
    collate_ns: int = 0
    sampler_ns: int = 0


class Restart(NamedTuple):
    """What it cost to end the workers of an epoch and to start those of the next one, in nanoseconds.

    Attributes:
        stop_ns: The `__next__` that found the epoch over and waited for its workers to end; None where the loop had
            left the epoch before its end.
        start_ns: `iter(loader)`, which starts processes.
        first_batch_ns: The wait for the first batch of the new workers.
        profiled: Whether the profiler recorded.
    """

    stop_ns: int | None
    start_ns: int
    first_batch_ns: int
    profiled: bool


@dataclass
class LoaderRecord:
    """One DataLoader; times in nanoseconds, summed over the whole run.

    Attributes:
        settings: What `read_settings` or `read_iterator_settings` returned.
        created: The line that made the loader, None when nothing listened then.
        location: The line of the loop that asks for batches.
        batches: Calls of `__next__`, the last one included, which finds the loader exhausted.
        wait_ns: Time in `__next__`.
        wait_cpu_ns: CPU time of the training thread in `__next__`. Without workers it tells loading that computes from
            loading that sleeps or waits for a disk or a network. It does not contain the work of worker processes.
        longest_wait_ns: The longest call of `__next__`.
        iterations: How many loops called `iter()` on the loader.
        first_batch_ns: The longest wait for the first batch of an iteration.
        ready: Batches that were there when the loop asked for them; only of loaders with workers.
        waits: The calls of `__next__` in steps without a profiler, without the first batch of each iteration.
        restarts: What it cost to start workers again, of the first iterations that did so.
        restart_count: How often workers were started again.
        fetches: Batches that workers have loaded, those that were still known when they were asked for.
        batch_bytes: Size of the tensors of the first batch; None before it.
        batch_tensors: Their number.
        objects: What `describe_objects` said of its data set; None where it was not asked.
        workers: For the process id of each worker how many of its batches were read.
        trains: Whether a backward pass has followed one of its batches: that of an evaluation has none.
    """

    settings: dict[str, Any]
    created: Location | None
    location: Location | None = None
    batches: int = 0
    wait_ns: int = 0
    wait_cpu_ns: int = 0
    longest_wait_ns: int = 0
    iterations: int = 0
    first_batch_ns: int | None = None
    ready: int = 0
    waits: list[Wait] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    restart_count: int = 0
    fetches: list[Fetch] = field(default_factory=list)
    workers: dict[int, int] = field(default_factory=dict)
    is_first_batch: bool = True
    objects: dict[str, Any] | None = None
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    trains: bool = False
    _is_whole: bool = False
    _stop_ns: int | None = None
    _restart_ns: int | None = None

    def note_batch(self, *, exhausted: bool) -> bool:
        """Whether a batch is the first of an epoch, but the first epoch; of a loader that trains.

        What got a single batch of a loader with more is no epoch: a loop that calls `next(iter(loader))`.
        """
        begins = self.is_first_batch and not exhausted and self.trains and self._is_whole
        self._is_whole = exhausted or not self.is_first_batch
        self.is_first_batch = False
        return begins

    def begin_iteration(self, start_ns: int | None) -> None:
        """A loop has called `iter()` on the loader; `start_ns` is what that took, None where it started no workers."""
        self._restart_ns = start_ns if self.iterations else None
        self.iterations += 1
        self.is_first_batch = True

    def note_restart(self, wait: Wait, *, profiled: bool) -> None:
        """Add what the workers' new start has cost, once their first batch is there."""
        if self._restart_ns is not None:
            self.restart_count += 1
            if len(self.restarts) < MAX_RESTARTS_KEPT:
                self.restarts.append(Restart(self._stop_ns, self._restart_ns, wait.wall_ns, profiled))
        self._restart_ns = self._stop_ns = None

    def note_end(self, wait: Wait) -> None:
        """Remember how long the `__next__` took that found the iteration over."""
        self._stop_ns = wait.wall_ns

    def describe_restarts(self) -> dict[str, Any] | None:
        """How often workers were started again, and what that took in the median; None without workers."""
        if not self.settings.get("num_workers"):
            return None
        chosen = [each for each in self.restarts if not each.profiled] or self.restarts
        stops = [each.stop_ns for each in chosen if each.stop_ns is not None]
        return {
            "count": self.restart_count,
            "stop_ns": _median(stops),
            "start_ns": _median(each.start_ns for each in chosen),
            "first_batch_ns": _median(each.first_batch_ns for each in chosen),
        }

    def read_workers(self) -> None:
        """Read what the workers have written since the last call."""
        for pid, seen in self.workers.items():
            self.workers[pid], fetches = read_fetches(pid, seen)
            self.fetches += fetches[max(1 - seen, 0) :]  # the first batch of a worker warms it up
        del self.fetches[:-MAX_BATCHES_KEPT]

    def describe_fetch(self, span_ns: tuple[int, int] | None) -> dict[str, Any] | None:
        """How long a batch takes to load, and where; None where nobody measured it.

        Batches that workers loaded within `span_ns`, the base window, are taken where there are three of them, because
        a profiler slows the others.
        """
        batches: Sequence[Fetch] | Sequence[Wait]
        if self.settings.get("num_workers"):
            inside = [each for each in self.fetches if span_ns and span_ns[0] <= each.end_ns <= span_ns[1]]
            batches = loaded = inside if len(inside) >= 3 else self.fetches
            where, parts_ns = "worker", [(each.wall_ns, each.collate_ns) for each in loaded]
            queued_ns = [each.queued_ns for each in loaded if each.queued_ns >= 0]
        else:
            batches, where = self.waits, "main"
            parts_ns = [(each.fetch_ns, each.collate_ns) for each in self.waits if each.fetch_ns]
            queued_ns = [each.queued_ns for each in self.waits if each.queued_ns is not None]
        if not batches:
            return None
        return {
            "where": where,
            "batches": len(batches),
            "median_ns": _median(each.wall_ns for each in batches),
            "cpu_ns": _median(each.cpu_ns for each in batches),
            "process_cpu_ns": _median(each.process_cpu_ns for each in batches),
            "max_ns": max(each.wall_ns for each in batches),
            "collate_ns": _median(collate_ns for _, collate_ns in parts_ns),
            "items_ns": _median(fetch_ns - collate_ns for fetch_ns, collate_ns in parts_ns),
            "queued_ns": _median(queued_ns) if len(queued_ns) == len(batches) else None,
            "sampler_ns": _median(each.sampler_ns for each in self.waits),
        }

    def to_dict(self, span_ns: tuple[int, int] | None = None) -> dict[str, Any]:
        """The record as it stands in facts.json; `span_ns` as in `describe_fetch`."""
        return {
            **self.settings,
            **{name: getattr(self, name) for name in TOTALS},
            "ready": self.ready if self.settings.get("num_workers") else None,
            "wait_median_ns": _median(each.wall_ns for each in self.waits),
            "fetch": self.describe_fetch(span_ns),
            "restarts": self.describe_restarts(),
            "dataset_objects": self.objects,
        }


def find_tensors(batch: Any, depth: int = 4) -> list[Any]:
    """The tensors in a batch, in its lists, tuples and dictionaries; none in what is none of these."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if not depth:
        return []
    if isinstance(batch, Mapping):
        return [tensor for each in list(batch.values()) for tensor in find_tensors(each, depth - 1)]
    if isinstance(batch, list | tuple):
        return [tensor for each in batch for tensor in find_tensors(each, depth - 1)]
    return []


def _median(values: Iterable[int]) -> int | None:
    found = list(values)
    return int(statistics.median(found)) if found else None


def read_settings(loader: Any) -> dict[str, Any]:
    """The allowed settings of a DataLoader; a setting that it does not have is None."""
    values = {name: getattr(loader, name, None) for name in LOADER_SETTINGS}
    batch_sampler = getattr(loader, "batch_sampler", None)
    if values["batch_size"] is None:
        values["batch_size"] = getattr(batch_sampler, "batch_size", None)
    names = ("dataset", "sampler", "collate_fn", "multiprocessing_context", "batch_sampler")
    return {**values, **_describe_parts(*(getattr(loader, name, None) for name in names))}


def _describe_parts(dataset: Any, sampler: Any, collate: Any, context: Any, batch_sampler: Any) -> dict[str, Any]:
    start_method = getattr(context, "get_start_method", None)
    function = getattr(collate, "func", collate)  # of a functools.partial
    return {
        "dataset": type(dataset).__name__,
        "sampler": type(sampler).__name__,
        "collate_fn": None if collate is None else getattr(function, "__name__", type(function).__name__),
        "collate_location": code_location(collate),
        "items_location": _locate_method(dataset, "__getitems__", "__getitem__", "__iter__"),
        "sampler_location": _locate_method(batch_sampler, "__iter__") or _locate_method(sampler, "__iter__"),
        "start_method": start_method() if start_method is not None else None,
    }


def _locate_method(part: Any, *names: str) -> Location | None:
    """Where the first of some methods of a part of a loader is written; None where they are torch's."""
    for name in names:
        place = code_location(getattr(type(part), name, None))
        if place is not None:
            return place
    return None


def starts_workers(loader: Any) -> bool:
    """Whether `iter(loader)` starts worker processes: not where those of an earlier iteration persist."""
    if not getattr(loader, "num_workers", 0):
        return False
    return not getattr(loader, "persistent_workers", False) or getattr(loader, "_iterator", None) is None


def read_iterator_settings(iterator: Any) -> dict[str, Any]:
    """The same settings from a loader's iterator, for a loop that began before the recorder was installed."""
    sampler = getattr(iterator, "_index_sampler", None)
    dataset, collate, context = (
        getattr(iterator, name, None) for name in ("_dataset", "_collate_fn", "_multiprocessing_context")
    )
    return {
        **{name: getattr(iterator, f"_{name}", None) for name in LOADER_SETTINGS},
        "batch_size": getattr(sampler, "batch_size", None),
        **_describe_parts(dataset, getattr(sampler, "sampler", sampler), collate, context, sampler),
    }


@dataclass
class LoaderRecords:
    """The records of all loaders that a loop has used, found by the loader or by one of its iterators.

    Attributes:
        measures_objects: Whether to look for Python objects that data sets hold.
        processes: The workers that somebody still refers to.
    """

    records: list[LoaderRecord] = field(default_factory=list)
    measures_objects: bool = False
    processes: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    _last: LoaderRecord | None = None
    _by_object: weakref.WeakKeyDictionary[Any, LoaderRecord] = field(default_factory=weakref.WeakKeyDictionary)

    def add_loader(self, loader: Any, frame: FrameType | None) -> None:
        """Remember a new DataLoader and the user's line above the frame that made it."""
        self._by_object[loader] = LoaderRecord(read_settings(loader), user_location(frame))

    def add_iterator(self, loader: Any, iterator: Any, frame: FrameType | None, start_ns: int | None = None) -> None:
        """Remember the iterator that a loop got from `iter(loader)`; the first one puts the loader on record.

        `frame` asked for it, and `start_ns` is how long that took, where it has started workers.
        """
        record = self._by_object.get(loader)
        if record is None:
            record = self._by_object[loader] = LoaderRecord(read_settings(loader), None)
        if not record.iterations:
            self.records.append(record)
            record.location = user_location(frame)
            record.settings = read_settings(loader)
            if self.measures_objects:
                record.objects = describe_objects(loader.dataset)
        record.begin_iteration(start_ns)
        for process in getattr(iterator, "_workers", ()):
            record.workers.setdefault(process.pid, 0)
            self.processes.add(process)
        self._by_object[iterator] = record

    def add_batch(self, iterator: Any, batch: Any) -> None:
        """Look at the first batch of a loader: how large it is decides what handing it over costs."""
        record = self._by_object.get(iterator)
        if record is not None and record.batch_bytes is None:
            tensors = find_tensors(batch)
            record.batch_tensors = len(tensors)
            record.batch_bytes = sum(each.numel() * each.element_size() for each in tensors)

    def add_wait(
        self, iterator: Any, wait: tuple[int, int, int, int | None], *, profiled: bool, exhausted: bool = False
    ) -> bool:
        """Add one call of the iterator's `__next__`, and say whether it begins another epoch.

        `wait` is how long it took, the CPU time of the training thread and of the process in it, and how long the
        thread waited for a core. While the profiler records, loading is slower.
        """
        call = Wait(*wait, *local_fetches.take())
        record = self._by_object.get(iterator)
        if record is None:
            record = LoaderRecord(read_iterator_settings(iterator), None, user_location(sys._getframe(1)), iterations=1)
            self._by_object[iterator] = record
            self.records.append(record)
        wait_ns, cpu_ns = call.wall_ns, call.cpu_ns
        record.batches += 1
        is_first, begins_epoch = record.is_first_batch, record.note_batch(exhausted=exhausted)
        self._last = record
        if is_first:
            record.first_batch_ns = max(record.first_batch_ns or 0, wait_ns)
            record.note_restart(call, profiled=profiled)
        elif exhausted:
            record.note_end(call)
        elif not profiled and len(record.waits) < MAX_BATCHES_KEPT:
            record.waits.append(call)
        record.ready += wait_ns - cpu_ns < READY_NS
        record.wait_ns += wait_ns
        record.wait_cpu_ns += cpu_ns
        record.longest_wait_ns = max(record.longest_wait_ns, wait_ns)
        return begins_epoch

    def note_training(self) -> None:
        """A backward pass begins: the loader that was asked last trains."""
        if self._last is not None:
            self._last.trains = True

    def read_workers(self) -> None:
        """Read what the workers of all loaders have written."""
        for record in self.records:
            record.read_workers()

    def count_worker_cores(self, span_ns: tuple[int, int] | None) -> float | None:
        """Cores that all workers used in the base window; None where not known, 0 where there are no workers."""
        if not any(record.workers for record in self.records):
            return 0.0
        if span_ns is None or span_ns[1] <= span_ns[0]:
            return None
        used_ns = known_ns = 0
        for record in self.records:
            inside = [each for each in record.fetches if span_ns[0] <= each.end_ns <= span_ns[1]]
            used_ns += sum(each.process_cpu_ns for each in inside)
            known_ns += len(inside)
        return round(used_ns / (span_ns[1] - span_ns[0]), 3) if known_ns else None


MIN_OBJECTS = 10_000
# Of each container, spread over a list: as many are enough for a mean size, and take 0.1 ms.
OBJECT_SAMPLES = 64
# Of data sets in data sets: a split of a concatenation of the program's own.
MAX_OBJECT_DEPTH = 4
# Python gives out memory in multiples of this.
ALIGNMENT = 16
# Beside its count of references a larger object fills pages that nobody writes to.
PAGE_BYTES = 4096
CONTAINERS = (list, tuple, dict, set)


def describe_objects(dataset: Any) -> dict[str, Any] | None:
    """The largest container of Python objects in the attributes of a data set.

    The attribute, the type and the length of the container, and about how many bytes a worker copies that reads all of
    it; None where none has `MIN_OBJECTS` objects. No code of the data set runs.
    """
    found: list[dict[str, Any]] = [
        {"attribute": name, "type": type(each).__name__, "length": len(each), "bytes": estimate_bytes(each)}
        for name, each in find_containers(dataset, MAX_OBJECT_DEPTH)
    ]
    large = [each for each in found if each["length"] >= MIN_OBJECTS]
    return max(large, key=lambda each: each["bytes"], default=None)


def find_containers(holder: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """The containers in the attributes of an object, and in those of the data sets in it, with their attributes."""
    try:
        attributes = dict(vars(holder))
    except TypeError:  # it has slots, or is a container itself
        attributes = {"dataset": holder}
    for name, value in attributes.items():
        if type(value) in CONTAINERS:
            yield name, value
            parts = list(value) if type(value) in (list, tuple) and len(value) <= OBJECT_SAMPLES else ()
        else:
            parts = [value]
        for part in parts if depth else ():
            if hasattr(type(part), "__getitem__") and isinstance(getattr(part, "__dict__", None), dict):
                yield from find_containers(part, depth - 1)


def estimate_bytes(container: Any) -> int:
    """About how many bytes the objects of a container take, as far as reading them writes to their pages."""
    count = len(container)
    if not count:
        return 0
    if type(container) in (list, tuple):
        chosen = [container[number * count // OBJECT_SAMPLES] for number in range(min(OBJECT_SAMPLES, count))]
    else:
        chosen = list(islice(container.items() if type(container) is dict else container, OBJECT_SAMPLES))
    return sum(measure(each, MAX_OBJECT_DEPTH) for each in chosen) * count // len(chosen)


def measure(value: Any, depth: int) -> int:
    """The bytes of an object and of those in it that have counts of references of their own."""
    if value is None or isinstance(value, bool | type):  # one object for the whole program
        return 0
    size = min(-(-sys.getsizeof(value, 64) // ALIGNMENT) * ALIGNMENT, PAGE_BYTES)
    if not depth or type(value) not in CONTAINERS:
        return size
    parts = [part for pair in value.items() for part in pair] if type(value) is dict else value
    inner = list(islice(parts, OBJECT_SAMPLES))
    if not inner:
        return size
    return size + sum(measure(each, depth - 1) for each in inner) * len(parts) // len(inner)
