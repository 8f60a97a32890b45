"""What `perfdoctor run --memory` adds to the facts: peaks of steps, memory of the host, requests that failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from perfdoctor.facts.part import NOTHING, CapturedLine, CapturedPart, Later, OrNull, Written

WindowLabel = Literal["skip", "base", "warm", "timing", "evidence", "after", "requested", "user_profiler"]


class PhasePeaks(CapturedPart):
    """The highest peaks of the steps of a window, in the phases of a step and in all of it.

    What is in no backward pass and no optimizer's step counts as forward.

    Attributes:
        steps: The steps that were looked at.
    """

    steps: Written[int] = None
    forward_bytes: int | None = None
    backward_bytes: int | None = None
    optimizer_bytes: int | None = None
    step_bytes: int | None = None


class StepPeaks(CapturedPart):
    """The peaks of steps; in steps.jsonl each of them, null for steps that were not looked at.

    Attributes:
        kind: cuda: what the allocator had handed out; rss: the process in RAM at the borders of phases, and its own
            peak where that has risen in a step.
        program_resets: Whether the program resets the allocator's peaks: then these are peaks since its last reset.
        windows: By the label of a step in steps.jsonl.
    """

    kind: Literal["cuda", "rss"] | None = None
    program_resets: Written[bool] = None
    windows: Mapping[WindowLabel, PhasePeaks] = NOTHING


class ProcessMemory(CapturedPart):
    """A process that the program has started, or the program itself.

    Attributes:
        kind: worker: of a DataLoader.
        samples: How often it was looked at.
        last_bytes: Its memory at the last look, in which a page shared by n processes counts 1/n.
        peak_bytes: The most of that.
        private_first_bytes: Written pages that it shares with nobody, at the first look.
        private_last_bytes: The same at the last look: of a forked worker all that it has copied or made.
        shared_memory_peak_bytes: The most of its part of shared memory, such as batches on their way.
    """

    pid: Written[int] = None
    kind: Written[Literal["program", "worker", "other"]] = None
    samples: Written[int] = None
    last_bytes: int | None = None
    peak_bytes: int | None = None
    private_first_bytes: int | None = None
    private_last_bytes: int | None = None
    shared_memory_peak_bytes: int | None = None


class ControlGroup(CapturedPart):
    """The control group with the least limit of memory, else the innermost one.

    Attributes:
        version: Of control groups: 1 or 2.
        limit_bytes: null without a limit.
        peak_bytes: The most that it used in any look, without the file pages that give way first.
        page_cache_bytes: Its file pages at the last look.
        oom_kills: Processes of it that were killed for lack of memory while the program ran.
    """

    version: Written[int] = None
    limit_bytes: int | None = None
    peak_bytes: int | None = None
    page_cache_bytes: int | None = None
    oom_kills: int | None = None


class KilledWorker(CapturedPart):
    """A worker of a DataLoader that a signal has ended."""

    pid: Written[int] = None
    signal: Written[int] = None


class HostMemoryFacts(CapturedPart):
    """Memory of the host, as a thread saw it in /proc: Linux only.

    Attributes:
        samples: How often the thread looked.
        cpu_ns: CPU time that it took.
        shared_in_parts: Whether shared pages count in parts (PSS); false: each process counts all of them.
        tree_peak_bytes: The most that the program and all that it started had together.
        available_least_bytes: The least that the machine could still give.
        shared_memory_bytes: The size of /dev/shm.
        shared_memory_peak_bytes: The most that was used of it, by whomever.
        open_files_limit: How many file descriptors the program may have; null without a limit.
        open_files_peak: The most that it had.
    """

    status: Written[Literal["starting", "sampled", "not linux", "failed"]] = None
    why: str | None = None
    samples: Written[int] = None
    cpu_ns: Written[int] = None
    shared_in_parts: bool | None = None
    tree_peak_bytes: int | None = None
    processes: tuple[ProcessMemory, ...] = ()
    available_least_bytes: int | None = None
    shared_memory_bytes: int | None = None
    shared_memory_peak_bytes: int | None = None
    open_files_limit: Later[int | None] = None
    open_files_peak: Later[int | None] = None
    group: OrNull[ControlGroup] = ControlGroup()
    killed_workers: tuple[KilledWorker, ...] = ()


class OutOfMemoryFacts(CapturedPart):
    """A request for memory that failed: the last one, which ended the program or did not.

    Attributes:
        error: The type of the error.
        times: How many requests failed.
        device: The number of the GPU; null for the host.
        free_bytes: What the GPU had left.
        rss_bytes: Memory of the process in RAM.
        file: The snapshot of the allocator in the folder of the rank.
    """

    error: Written[str] = None
    times: Written[int] = None
    device: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    device_bytes: int | None = None
    rss_bytes: int | None = None
    location: OrNull[CapturedLine] = CapturedLine()
    file: str | None = None


class DatasetObjects(CapturedPart):
    """The largest container of Python objects in a data set: reading them in a forked worker copies their pages.

    Attributes:
        attribute: Of the data set.
        bytes: About how much a worker copies that reads all of it.
    """

    attribute: Written[str] = None
    type: Written[Literal["list", "tuple", "dict", "set"]] = None
    length: Written[int] = None
    bytes: Written[int] = None
