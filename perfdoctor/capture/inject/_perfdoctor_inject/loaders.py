"""What is known of each DataLoader: where it was made, where the loop asks it, its settings, and its waits."""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from .tracebacks import HERE

Location = dict[str, Any]

TORCH = os.path.dirname(torch.__file__) + os.sep
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
SETTINGS = ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor", "drop_last", "timeout")


def user_location(frame: FrameType | None) -> Location | None:
    """The innermost line of the user's own code, else of the first library that is not torch.

    Returns:
        file, line and function, or None when only torch is on the stack.
    """
    outside: FrameType | None = None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH, HERE, "<frozen")):
            outside = outside or frame
            if not name.startswith(LIBRARIES):
                outside = frame
                break
        frame = frame.f_back
    if outside is None:
        return None
    return {"file": outside.f_code.co_filename, "line": outside.f_lineno, "function": outside.f_code.co_name}


@dataclass
class LoaderRecord:
    """One DataLoader; times in nanoseconds, summed over the whole run.

    `wait_cpu_ns` is the training thread's own CPU time in `__next__`: without workers it tells loading that computes
    from loading that sleeps or waits for a disk or a network. With workers it says nothing about their work.
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
        """As it stands in facts.json."""
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
    """The allow-list of a DataLoader; what it does not have is None."""
    values = {name: getattr(loader, name, None) for name in SETTINGS}
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


def read_iterator(iterator: Any) -> dict[str, Any]:
    """The same of a loader's iterator, for a loop that had begun before anybody listened; what it lacks is None."""
    start_method = getattr(getattr(iterator, "_multiprocessing_context", None), "get_start_method", None)
    sampler = getattr(iterator, "_index_sampler", None)
    return {
        "dataset": type(getattr(iterator, "_dataset", None)).__name__,
        **{name: getattr(iterator, f"_{name}", None) for name in SETTINGS},
        "batch_size": getattr(sampler, "batch_size", None),
        "sampler": type(getattr(sampler, "sampler", sampler)).__name__,
        "collate_fn": getattr(getattr(iterator, "_collate_fn", None), "__name__", None),
        "start_method": start_method() if start_method is not None else None,
    }


@dataclass
class LoaderBook:
    """All loaders of the process, found again by the loader object and by its iterators."""

    records: list[LoaderRecord] = field(default_factory=list)
    _by_object: weakref.WeakKeyDictionary[Any, LoaderRecord] = field(default_factory=weakref.WeakKeyDictionary)

    def created(self, loader: Any, frame: FrameType | None) -> None:
        """A DataLoader was constructed somewhere above the frame."""
        self._by_object[loader] = LoaderRecord(read_settings(loader), user_location(frame))

    def iterated(self, loader: Any, iterator: Any, frame: FrameType | None) -> None:
        """A loop called iter() on it somewhere above the frame."""
        record = self._by_object.get(loader)
        if record is None:
            record = self._by_object[loader] = LoaderRecord(read_settings(loader), None)
        if not record.iterations:
            self.records.append(record)
            record.location = user_location(frame)
            record.settings = read_settings(loader)
        record.iterations += 1
        self._by_object[iterator] = record

    def waited(self, iterator: Any, wait_ns: int, cpu_ns: int) -> None:
        """The loop has waited in `__next__` of the iterator, and its thread has computed for `cpu_ns` of that."""
        record = self._by_object.get(iterator)
        if record is None:
            record = LoaderRecord(read_iterator(iterator), None, user_location(sys._getframe(1)), iterations=1)
            self._by_object[iterator] = record
            self.records.append(record)
        record.batches += 1
        record.wait_ns += wait_ns
        record.wait_cpu_ns += cpu_ns
        record.longest_wait_ns = max(record.longest_wait_ns, wait_ns)
