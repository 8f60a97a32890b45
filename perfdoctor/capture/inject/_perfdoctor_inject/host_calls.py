"""What keeps the training thread from its work: the garbage collector, files that are synced, checkpoints, copies.

Each call is timed where it is made, in steps without a profiler, too. A call inside another one belongs to that one:
`os.fsync` inside `torch.save` is saving. Calls of a site (one function at one line of the user's code) add up over the
steps of the run that no profiler slowed down; those before the first step are no part of the training.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn import Module
from torch.utils.data import get_worker_info

from .probes import EndedStep, Probe
from .user_code import Location, is_user_file, user_location
from .watched_calls import Watching

COLLECT, SAVE, DEEPCOPY = "gc.collect", "torch.save", "copy.deepcopy"
WATCHED_CALLS = (
    (gc, "collect", COLLECT),
    (os, "fsync", "os.fsync"),
    (os, "fdatasync", "os.fdatasync"),
    (torch, "save", SAVE),
    (copy, "deepcopy", DEEPCOPY),
)
# Opens a range of the trace, and returns what closes it; None where nothing is recorded.
OpenRange = Callable[[str], Callable[[], None] | None]
# A shorter call costs less than to find out who makes it; a disk takes longer for each sync.
MIN_CALL_NS = 20_000
# A program that makes its code anew in each step must not fill the memory.
MAX_SITES = 200
# From Python 3.14 on the collector has no third generation: its second one visits the old objects, part by part.
OLDEST_GENERATION = 2 if sys.version_info < (3, 14) else 1


@dataclass(eq=False)
class CallSite:
    """Calls of one function at one line, over the steps without a profiler.

    Attributes:
        call: The function, such as "torch.save".
        location: The user's line.
        copied: What the first copy here was of, see `describe_copied`.
        checksum: Of the largest tensor in the first file that was saved here, where it is known: equal ones on two
            ranks are the same data.
        count, ns, bytes: How many calls, how long they took, and how much was saved; None where that is not known.
        steps, step_ns: In how many steps there was one, and how long these took.
        largest_step_ns: The most that the calls of one step took.
    """

    call: str
    location: Location | None
    copied: str | None = None
    checksum: str | None = None
    count: int = 0
    ns: int = 0
    bytes: int | None = None
    steps: int = 0
    step_ns: int = 0
    largest_step_ns: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The site as it stands in facts.json."""
        return dict(vars(self))


@dataclass
class CallsInStep:
    """The calls of one site in the running step."""

    count: int = 0
    ns: int = 0
    bytes: int = 0


class HostCalls(Probe):
    """The watched calls and the collections of the running step, and of all steps without a profiler.

    Attributes:
        gc_ns: How long garbage was collected in the running step, automatically and by `gc.collect`.
        call_ns: How long the other watched calls of the running step took.
        wants_checksums: Whether other ranks may save the same.
    """

    def __init__(self) -> None:
        self.gc_ns = self.call_ns = 0
        self._open_range: OpenRange | None = None
        self.wants_checksums = False
        self._is_inside = False
        self._collection_start_ns = 0
        self._close_collection: Callable[[], None] | None = None
        self._automatic_in_step = CallsInStep()
        self._in_step: dict[CallSite, CallsInStep] = {}
        self._sites: dict[tuple[Any, ...], CallSite] = {}
        self._automatic = CallSite(COLLECT, None)  # the oldest generation alone
        self._thread: int | None = None
        self._see_save: Callable[[], None] = lambda: None

    def begin_step(self) -> None:
        """Begin a step in the calling thread."""
        self.gc_ns = self.call_ns = 0
        self._automatic_in_step = CallsInStep()
        self._in_step.clear()
        self._thread = threading.get_ident()

    def step(self, ended: EndedStep) -> None:
        """Add the calls of a step that has ended to those of the run, unless a profiler slowed them down."""
        if ended.is_profiled:
            return
        dur_ns = ended.dur_ns
        for site, calls in self._in_step.items():
            site.count += calls.count
            site.bytes = (site.bytes or 0) + calls.bytes if calls.bytes else site.bytes
            _add_step(site, calls.ns, dur_ns)
        if self._automatic_in_step.count:
            self._automatic.count += self._automatic_in_step.count
            _add_step(self._automatic, self._automatic_in_step.ns, dur_ns)

    def begin_call(self) -> bool:
        """A watched call begins; False inside another one, which it is a part of."""
        if self._is_inside:
            return False
        self._is_inside = True
        return True

    def end_call(
        self, call: str, frame: FrameType | None, dur_ns: int, saved: object = None, copied: object = None
    ) -> None:
        """A watched call of `frame` has returned or raised.

        `saved` is the file that it wrote, by its path, and `copied` what it copied.
        """
        self._is_inside = False
        if dur_ns < MIN_CALL_NS:
            return
        if call == COLLECT:
            self.gc_ns += dur_ns
        else:
            self.call_ns += dur_ns
        site = self._site_of(call, frame)
        if site is None:
            return
        calls = self._in_step.setdefault(site, CallsInStep())
        calls.count += 1
        calls.ns += dur_ns
        if site.copied is None and copied is not None:
            site.copied = describe_copied(copied)
        if isinstance(saved, str | os.PathLike):
            calls.bytes += _size_of(saved)
            if self.wants_checksums and site.checksum is None:
                site.checksum = checksum_of_largest_tensor(saved)

    def on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Python's garbage collector starts or stops; only its oldest generation takes long."""
        if info["generation"] < OLDEST_GENERATION or self._is_inside:
            return
        if phase == "start":
            if self._open_range is not None and self._thread == threading.get_ident():
                self._close_collection = self._open_range(COLLECT)
            self._collection_start_ns = time.perf_counter_ns()
        elif self._collection_start_ns:
            dur_ns = time.perf_counter_ns() - self._collection_start_ns
            self._collection_start_ns = 0
            close, self._close_collection = self._close_collection, None
            if close is not None:
                close()
            self.gc_ns += dur_ns
            self._automatic_in_step.count += 1
            self._automatic_in_step.ns += dur_ns

    def install(
        self,
        watch: Callable[..., None],
        add_undo: Callable[[Callable[[], None]], None],
        see_save: Callable[[], None],
        open_range: OpenRange,
    ) -> None:
        """Watch the calls of the training thread, and the garbage collector.

        `open_range` opens a range of the trace while one is recorded, so that the time is known there, too.
        """
        self._open_range, self._see_save = open_range, see_save
        for owner, name, call in WATCHED_CALLS:
            concerns = _copies_much if call == DEEPCOPY else None
            watch(owner, name, functools.partial(self._watch_call, call), concerns=concerns)
        gc.callbacks.append(self.on_collection)
        add_undo(self._stop_watching)

    def _watch_call(self, call: str, frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Watching:
        if get_worker_info() is not None or not self.begin_call():
            return
        if call == SAVE:
            self._see_save()
        close = self._open_range(call) if self._open_range is not None else None
        start_ns = time.perf_counter_ns()
        yield
        dur_ns = time.perf_counter_ns() - start_ns
        if close:
            close()
        saved = (args[1] if len(args) > 1 else kwargs.get("f")) if call == SAVE else None
        self.end_call(call, frame, dur_ns, saved, args[0] if call == DEEPCOPY else None)

    def _stop_watching(self) -> None:
        if self.on_collection in gc.callbacks:
            gc.callbacks.remove(self.on_collection)

    def facts(self) -> dict[str, Any]:
        """The garbage collector, and the calls, the longest first."""
        sites = [site for site in self._sites.values() if site.steps and site.call != COLLECT]
        calls = [site.to_dict() for site in sorted(sites, key=lambda site: -site.ns)]
        return {"collector": self._describe_collector(), "host_calls": calls}

    def _describe_collector(self) -> dict[str, Any]:
        sites = [site for site in self._sites.values() if site.steps and site.call == COLLECT]
        longest = max(sites, key=lambda site: site.ns, default=None)
        automatic = self._automatic
        return {
            "enabled": gc.isenabled(),
            "frozen": gc.get_freeze_count(),
            "collect_calls": sum(site.count for site in sites),
            "collect_ns": sum(site.ns for site in sites),
            "collect_steps": max((site.steps for site in sites), default=0),
            "collect_step_ns": max((site.step_ns for site in sites), default=0),
            "collect_largest_step_ns": max((site.largest_step_ns for site in sites), default=0),
            "location": None if longest is None else longest.location,
            "collections": automatic.count,
            "collections_ns": automatic.ns,
            "collection_steps": automatic.steps,
            "collection_step_ns": automatic.step_ns,
            "collection_largest_step_ns": automatic.largest_step_ns,
        }

    def _site_of(self, call: str, frame: FrameType | None) -> CallSite | None:
        """The site of a call; None where there are too many already.

        Where a line of the user's makes the call it is the site; else the stack is searched for one each time.
        """
        caller: tuple[CodeType, int] | None = None
        if frame is not None and is_user_file(frame.f_code.co_filename):
            caller = frame.f_code, frame.f_lineno
            site = self._sites.get((call, *caller))
            if site is not None:
                return site
        location = user_location(frame)
        place = () if location is None else tuple(location.values())
        key: tuple[Any, ...] = (call, *place) if caller is None else (call, *caller)
        site = self._sites.get(key)
        if site is None and len(self._sites) < MAX_SITES:
            site = self._sites[key] = CallSite(call, location)
        return site


def _copies_much(args: tuple[Any, ...]) -> bool:
    """Whether `copy.deepcopy` gets a module or a dictionary, as its state is: small things come by the million."""
    return bool(args) and isinstance(args[0], (dict, Module))


def _add_step(total: CallSite, ns: int, dur_ns: int) -> None:
    """Add a step with calls, which took `ns` of it."""
    total.ns += ns
    total.steps += 1
    total.step_ns += dur_ns
    total.largest_step_ns = max(total.largest_step_ns, ns)


def _size_of(path: str | os.PathLike[str]) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def describe_copied(value: object) -> str:
    """What was copied: "model", "state" where it is the state of a model or an optimizer, else its type and size."""
    if isinstance(value, Module):
        return "model"
    parts = [value, *value.values()] if isinstance(value, dict) else [value]
    for part in parts:  # state_dict() of a module puts its versions beside the tensors
        if isinstance(part, Module) or (
            isinstance(part, dict) and (hasattr(part, "_metadata") or part.keys() == {"state", "param_groups"})
        ):
            return "state"
    name = type(value).__name__
    return f"{name} with {len(value)} {'entry' if len(value) == 1 else 'entries'}" if isinstance(value, dict) else name


def checksum_of_largest_tensor(path: str | os.PathLike[str]) -> str | None:
    """Size and checksum of the largest part of a file of `torch.save`, which is a zip archive; None for other files.

    The archive's directory has both: no tensor is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            largest = max(archive.infolist(), key=lambda each: (each.file_size, each.CRC))
    except (OSError, ValueError, zipfile.BadZipFile):
        return None
    return f"{largest.file_size}-{largest.CRC:08x}"
