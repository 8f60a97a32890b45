"""PD603: other jobs use the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._nvml_load import find_gpus_under_load
from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer, read_advice


class SharedGpu(RankAnalyzer):
    """Processes of other jobs are on the GPU."""

    rule = "PD603"
    name = "shared-gpu"
    needs = frozenset({"gpu_items", "facts", "nvml"})
    # min_use: below it nobody's step shows it. min_memory: of the device's; below it is what an idle process holds.
    defaults = {"min_use": 0.05, "min_memory": 0.05}
    references = (
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",
        "https://docs.nvidia.com/deploy/mps/index.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for information for each GPU that others use all the time."""
        for gpu in find_gpus_under_load(rank):
            count, used = gpu.facts.other_processes.min, gpu.facts.other_sm_percent.max
            used_bytes, memory_bytes = gpu.facts.other_memory_bytes.max, gpu.facts.memory_total_bytes
            memory_share = used_bytes / memory_bytes if used_bytes is not None and memory_bytes else None
            is_used = used is not None and used >= 100 * self.settings["min_use"]
            if not count or not (is_used or (memory_share or 0) >= self.settings["min_memory"]):
                continue
            plural = "" if count > 1 else "s"
            what = [f"take{plural} up to {used:.0f}% of its time"] if is_used else []
            what += [] if memory_share is None else [f"hold{plural} {memory_share:.0%} of its memory"]
            noun, verb, they = ("processes", "are", "they") if count > 1 else ("process", "is", "it")
            finding = self.finding(
                rank,
                title=f"{count:.0f} {noun} of other jobs {verb} on {gpu.name}: {they} {' and '.join(what)}",
                advice=read_advice("shared GPU"),
                evidence=(
                    Evidence("processes of other jobs", round(count), "count"),
                    Evidence("most of the SMs' time that they took", used, "%"),
                    Evidence("device memory that they hold", used_bytes, "bytes"),
                ),
                subject=gpu.name,
            )
            yield replace(finding, severity="info")
