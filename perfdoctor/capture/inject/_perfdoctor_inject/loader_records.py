"""What is known of each DataLoader: where it was made, which line asks it for batches, its settings, and its waits."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from .user_code import Location, user_location

LOADER_SETTINGS = (
    "num_workers",
    "batch_size",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "timeout",
)


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
    """

    settings: dict[str, Any]
    created: Location | None
    location: Location | None = None
    batches: int = 0
    wait_ns: int = 0
    wait_cpu_ns: int = 0
    longest_wait_ns: int = 0
    iterations: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The record as it stands in facts.json."""
        return {
            **self.settings,
            "location": self.location,
            "created": self.created,
            "iterations": self.iterations,
            "batches": self.batches,
            "wait_ns": self.wait_ns,
            "wait_cpu_ns": self.wait_cpu_ns,
            "longest_wait_ns": self.longest_wait_ns,
        }


def read_settings(loader: Any) -> dict[str, Any]:
    """The allowed settings of a DataLoader; a setting that it does not have is None."""
    values = {name: getattr(loader, name, None) for name in LOADER_SETTINGS}
    batch_sampler = getattr(loader, "batch_sampler", None)
    if values["batch_size"] is None:
        values["batch_size"] = getattr(batch_sampler, "batch_size", None)
    context = getattr(loader, "multiprocessing_context", None)
    return {
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        **values,
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "collate_fn": getattr(getattr(loader, "collate_fn", None), "__name__", None),
        "start_method": context.get_start_method() if context is not None else None,
    }


def read_iterator_settings(iterator: Any) -> dict[str, Any]:
    """The same settings from a loader's iterator, for a loop that began before the recorder was installed."""
    start_method = getattr(getattr(iterator, "_multiprocessing_context", None), "get_start_method", None)
    sampler = getattr(iterator, "_index_sampler", None)
    return {
        "dataset": type(getattr(iterator, "_dataset", None)).__name__,
        **{name: getattr(iterator, f"_{name}", None) for name in LOADER_SETTINGS},
        "batch_size": getattr(sampler, "batch_size", None),
        "sampler": type(getattr(sampler, "sampler", sampler)).__name__,
        "collate_fn": getattr(getattr(iterator, "_collate_fn", None), "__name__", None),
        "start_method": start_method() if start_method is not None else None,
    }


@dataclass
class LoaderRecords:
    """The records of all loaders that a loop has used, found by the loader or by one of its iterators."""

    records: list[LoaderRecord] = field(default_factory=list)
    _by_object: weakref.WeakKeyDictionary[Any, LoaderRecord] = field(default_factory=weakref.WeakKeyDictionary)

    def add_loader(self, loader: Any, frame: FrameType | None) -> None:
        """Remember a new DataLoader and the user's line above the frame that made it."""
        self._by_object[loader] = LoaderRecord(read_settings(loader), user_location(frame))

    def add_iterator(self, loader: Any, iterator: Any, frame: FrameType | None) -> None:
        """Remember the iterator that a loop got from `iter(loader)`; the first one puts the loader on record."""
        record = self._by_object.get(loader)
        if record is None:
            record = self._by_object[loader] = LoaderRecord(read_settings(loader), None)
        if not record.iterations:
            self.records.append(record)
            record.location = user_location(frame)
            record.settings = read_settings(loader)
        record.iterations += 1
        self._by_object[iterator] = record

    def add_wait(self, iterator: Any, wait_ns: int, cpu_ns: int) -> None:
        """Add one call of the iterator's `__next__`, in which the training thread computed for `cpu_ns`."""
        record = self._by_object.get(iterator)
        if record is None:
            record = LoaderRecord(read_iterator_settings(iterator), None, user_location(sys._getframe(1)), iterations=1)
            self._by_object[iterator] = record
            self.records.append(record)
        record.batches += 1
        record.wait_ns += wait_ns
        record.wait_cpu_ns += cpu_ns
        record.longest_wait_ns = max(record.longest_wait_ns, wait_ns)
