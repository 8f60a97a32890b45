"""What is captured of the DataLoaders of a program."""

from __future__ import annotations

from typing import Literal

from perfdoctor.facts.part import CapturedLine, CapturedPart, Later, OrNull, Written
from perfdoctor.facts.recorded_memory import DatasetObjects


class BatchFetch(CapturedPart):
    """How long a batch takes to load, in the process that loads it.

    Attributes:
        cpu_ns: CPU time of the thread that loads; median.
        process_cpu_ns: CPU time of all threads of the process that loads; median. Without workers, threads that wait
            for work after an op of the training count, too.
        collate_ns: In collate_fn; median.
        items_ns: Making the items of a batch: the rest of the fetch without collate_ns; median.
        queued_ns: How long the thread that loads waited for a core; median. Older captures have it of workers only.
        sampler_ns: In the sampler, in the training process, whoever loads; median.
    """

    where: Written[Literal["worker", "main"]] = None
    batches: Written[int] = None
    median_ns: Written[int] = None
    cpu_ns: Written[int] = None
    process_cpu_ns: Written[int] = None
    collate_ns: int | None = None
    items_ns: Later[int | None] = None
    max_ns: Written[int] = None
    queued_ns: int | None = None
    sampler_ns: Later[int | None] = None


class WorkerRestarts(CapturedPart):
    """What starting workers anew costs.

    Attributes:
        count: How often workers were started again, after the first time.
        stop_ns: The __next__ that found an epoch over and waited for its workers to end; median.
        start_ns: iter(loader), which starts the workers; median.
        first_batch_ns: The wait for the first batch of the new workers; median.
    """

    count: Written[int] = None
    stop_ns: int | None = None
    start_ns: int | None = None
    first_batch_ns: int | None = None


class LoaderFacts(CapturedPart):
    """A DataLoader and what the loop waited for it.

    Attributes:
        collate_location: Where its collate function is written; null where that is torch's.
        items_location: Where the method of the data set is written that makes items; null where that is torch's.
        sampler_location: Where its batch sampler or sampler chooses items; null where that is torch's.
        location: Where the loop asks it for batches.
        created: Where it was made.
        wait_ns: In __next__, over the whole run.
        wait_cpu_ns: Of that, CPU time of the training thread: without workers, loading that computes.
        first_batch_ns: The longest wait for the first batch of an iteration.
        ready: Batches that were there when the loop asked for them; null without workers.
        wait_median_ns: In __next__, in steps without a profiler, without the first batch of an iteration.
        fetch: How long a batch takes to load, in the process that loads it, in steps without a profiler.
        batch_bytes: Size of the tensors of the first batch.
        batch_tensors: Number of the tensors of the first batch.
        restarts: What starting workers anew costs, of steps without a profiler where there are any; null without
            workers.
        dataset_objects: The largest container of Python objects in the data set; null without --memory, or without one.
    """

    dataset: Written[str] = None
    num_workers: int | None = None
    batch_size: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: int | None = None
    drop_last: bool | None = None
    timeout: float | None = None
    sampler: Written[str] = None
    collate_fn: str | None = None
    collate_location: Later[OrNull[CapturedLine]] = CapturedLine()
    items_location: Later[OrNull[CapturedLine]] = CapturedLine()
    sampler_location: Later[OrNull[CapturedLine]] = CapturedLine()
    start_method: str | None = None
    location: OrNull[CapturedLine] = CapturedLine()
    created: OrNull[CapturedLine] = CapturedLine()
    iterations: Written[int] = None
    batches: Written[int] = None
    wait_ns: Written[int] = None
    wait_cpu_ns: Written[int] = None
    longest_wait_ns: Written[int] = None
    first_batch_ns: int | None = None
    ready: int | None = None
    wait_median_ns: int | None = None
    fetch: OrNull[BatchFetch] = BatchFetch()
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    restarts: Later[OrNull[WorkerRestarts]] = WorkerRestarts()
    dataset_objects: Later[OrNull[DatasetObjects]] = DatasetObjects()
