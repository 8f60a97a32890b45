"""PD709: memory of the host runs short, or worker processes hold what they could share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from statistics import median_low
from typing import Literal

from perfdoctor.rules import (
    Advice,
    Evidence,
    Finding,
    LoaderFacts,
    Rank,
    RankAnalyzer,
    SavedBytes,
    captured_location,
    format_bytes,
)

# What a worker copies is known by a sample of the objects: pages hold others, too, and samples differ in size.
_LEAST_OF_ESTIMATE, _MOST_OF_ESTIMATE = 0.8, 1.25


class HostMemory(RankAnalyzer):
    """Workers of a DataLoader copy the data set, or shared memory, file descriptors or the limit of memory run out."""

    rule = "PD709"
    name = "host-memory"
    needs = frozenset({"facts"})
    # min_copied_bytes: of all workers; what a start of torch takes, below which nobody looks for memory.
    # min_copied_share: of the objects, in a worker; below it, it has not come to them, or reads a part.
    # min_full_share: of /dev/shm, of file descriptors and of the group's limit; the next batch, or a larger one, fails.
    defaults = {"min_copied_bytes": 200_000_000, "min_copied_share": 0.5, "min_full_share": 0.9}
    references = (
        "https://github.com/pytorch/pytorch/issues/13246",
        "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """At most one finding each on copies of data sets, on /dev/shm, on open files, and on the limit."""
        if not rank.facts.memory.host.samples:
            return
        loaders = [each for each in rank.facts.loaders if each.num_workers and each.dataset_objects.bytes]
        loader = max(
            loaders, key=lambda each: (each.num_workers or 0) * (each.dataset_objects.bytes or 0), default=None
        )
        if loader is not None:
            yield from self._find_copies(rank, loader)
        yield from self._find_full_shared_memory(rank)
        yield from self._find_open_files(rank)
        yield from self._find_near_limit(rank)

    def _find_copies(self, rank: Rank, loader: LoaderFacts) -> Iterator[Finding]:
        private = [each.private_last_bytes for each in rank.facts.memory.host.processes if each.kind == "worker"]
        workers, objects = loader.num_workers or 0, loader.dataset_objects
        largest = sorted((size for size in private if size is not None), reverse=True)[:workers]
        if not largest or objects.bytes is None:
            return
        written_bytes = median_low(largest)
        copied_bytes = workers * min(written_bytes, objects.bytes)
        has_read = written_bytes >= self.settings["min_copied_share"] * objects.bytes
        if not has_read or copied_bytes < self.settings["min_copied_bytes"]:
            return
        low, high = round(_LEAST_OF_ESTIMATE * copied_bytes), round(_MOST_OF_ESTIMATE * workers * objects.bytes)
        name = objects.attribute or "samples"
        made = f"{name} = np.array({name})"
        if objects.type == "dict":
            made = f"keys, values = np.array(list({name})), np.array(list({name}.values()))"
        finding = self._report(
            rank,
            f"Each of {workers} workers copies the {objects.length:,} objects in the {objects.type} {name!r} of the "
            f"data set {loader.dataset or ''}: {format_bytes(copied_bytes)} together",
            Advice(
                "Keep the samples in one NumPy array or tensor, texts in a pyarrow table or in one array of bytes with "
                "the place of each: workers share its pages, since reading it writes to no count of references.",
                f"{made}   # not of dtype object; or torch.tensor, or pyarrow.array",
                "https://github.com/pytorch/pytorch/issues/13246",
            ),
            Evidence("written by a worker and shared with nobody", written_bytes, "bytes"),
            Evidence("objects of the data set, by a sample", objects.bytes, "bytes"),
            Evidence("num_workers", workers, "count"),
            subject="copies",
            loader=loader,
            severity="medium" if self._is_near_limit(rank) else "info",
        )
        yield replace(finding, saved_bytes=SavedBytes(low, copied_bytes, high, copied_bytes))

    def _find_full_shared_memory(self, rank: Rank) -> Iterator[Finding]:
        host = rank.facts.memory.host
        size, peak = host.shared_memory_bytes, host.shared_memory_peak_bytes
        faults = sum(each.signal == signal.SIGBUS for each in host.killed_workers)
        if not self._is_nearly_full(size, peak) and not faults:
            return
        died = f", and {faults} worker{'s' * (faults != 1)} died of it (SIGBUS)" if faults else ""
        used = f"{format_bytes(peak)} of {format_bytes(size)}" if size and peak is not None else "an unknown part"
        yield self._report(
            rank,
            f"Shared memory runs out: {used} of /dev/shm were used{died}",
            Advice(
                "Give the container more shared memory, or let fewer batches wait in it: a smaller prefetch_factor, "
                "fewer workers.",
                "docker run --shm-size=8g   # Kubernetes: an emptyDir with medium: Memory at /dev/shm",
                "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
            ),
            Evidence("size of /dev/shm", size, "bytes"),
            Evidence("most that was used", peak, "bytes"),
            subject="shared memory",
            loader=rank.facts.main_loader,
            severity="high" if faults else "medium",
        )

    def _find_open_files(self, rank: Rank) -> Iterator[Finding]:
        host = rank.facts.memory.host
        limit, peak = host.open_files_limit, host.open_files_peak
        if not self._is_nearly_full(limit, peak):
            return
        yield self._report(
            rank,
            f"File descriptors run out: {peak:,} of {limit:,} were open",
            Advice(
                "Keep copies (.clone()), let tensors be shared by name, or raise the limit: each tensor that comes "
                "from a worker keeps a descriptor open as long as it lives. Close files that are read no more.",
                'torch.multiprocessing.set_sharing_strategy("file_system")   # or: ulimit -n 65536',
                "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
            ),
            Evidence("limit of open files", limit, "count"),
            Evidence("most that were open", peak, "count"),
            subject="open files",
            loader=rank.facts.main_loader,
            severity="medium",
        )

    def _find_near_limit(self, rank: Rank) -> Iterator[Finding]:
        memory = rank.facts.memory
        group, kills = memory.host.group, memory.host.group.oom_kills or 0
        limit, peak = group.limit_bytes, group.peak_bytes
        if not self._is_near_limit(rank) and not kills:
            return
        by_kind = {
            kind: sum(each.peak_bytes or 0 for each in memory.host.processes if each.kind == kind)
            for kind in ("program", "worker", "other")
        }
        used = f"{format_bytes(peak)} of {format_bytes(limit)}" if limit and peak is not None else "of an unknown size"
        killed = f", and the system killed {kills} process{'es' * (kills != 1)} in it" if kills else ""
        yield self._report(
            rank,
            f"Memory of the host is near its limit: {used} in the control group{killed}",
            Advice(
                "Give the job more memory, or take the part below that holds most: fewer workers, a smaller "
                "prefetch_factor, data that is mapped from a file (np.memmap) in place of data in memory.",
                None,
                "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
            ),
            Evidence("limit of the control group", limit, "bytes"),
            Evidence("most that was used, without file pages that give way", peak, "bytes"),
            Evidence("the program", by_kind["program"], "bytes"),
            Evidence("its workers", by_kind["worker"], "bytes"),
            Evidence("other processes of it", by_kind["other"], "bytes"),
            Evidence("pinned memory of PyTorch", memory.pinned_bytes, "bytes"),
            subject="limit",
            loader=rank.facts.main_loader,
            severity="high" if kills else "medium",
        )

    def _is_near_limit(self, rank: Rank) -> bool:
        group = rank.facts.memory.host.group
        return self._is_nearly_full(group.limit_bytes, group.peak_bytes)

    def _is_nearly_full(self, size_bytes: int | None, peak_bytes: int | None) -> bool:
        if not size_bytes or peak_bytes is None:
            return False
        return bool(peak_bytes >= self.settings["min_full_share"] * size_bytes)

    def _report(
        self,
        rank: Rank,
        title: str,
        advice: Advice,
        *evidence: Evidence,
        subject: str,
        loader: LoaderFacts,
        severity: Literal["info", "medium", "high"],
    ) -> Finding:
        finding = self.finding(
            rank,
            title=title,
            advice=advice,
            confidence=0.8,
            location=captured_location(loader.items_location) or captured_location(loader.created),
            evidence=evidence,
            subject=subject,
        )
        # What ends the program comes before all that is slow.
        order_key_ns = float(rank.mean_step_ns + 1) if severity == "high" else None
        return replace(finding, severity=severity, order_key_ns=order_key_ns)
