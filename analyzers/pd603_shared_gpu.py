"""PD603: other jobs use the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._nvml_load import find_gpus_under_load
from perfdoctor.rules import Evidence, Finding, Rank, RankAnalyzer


class SharedGpu(RankAnalyzer):
    """Processes of other jobs are on the GPU.

    What it finds:
        Processes that NVML names on a GPU of this program all the time, which are not of its job, and which use its SMs
        or hold a part of its memory.

    Why it costs time:
        Kernels of several processes take turns, each with the whole GPU, and none knows of the other: steps get longer
        and differ from each other. The memory that they hold is missing for a larger batch.

    How it is measured:
        NVML's processes once a second, without those of the job (the process, its ancestors, everything that its
        launcher started, its session) and without the server of MPS. How much of the SMs' time the others take NVML
        says itself, where it can. What they cost is not known: it is not in the trace.

    How to fix:
        Find them with `nvidia-smi`, and wait, move, or reserve the device (exclusive mode, a scheduler).

    When it is wrong:
        Where the sharing is meant. In containers NVML may count processes in another namespace; then nothing is said.

    Needs:
        Samples of NVML (`perfdoctor run` where nvidia-ml-py is installed).

    References:
        NVIDIA, NVML API reference, "nvmlDeviceGetProcessUtilization"; NVIDIA, "Multi-Process Service".
    """

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
                advice="Measure again when the GPU is yours alone: steps that share it are longer, and their length "
                "says little. What the others cost is not in the trace.",
                fix="nvidia-smi",
                evidence=(
                    Evidence("processes of other jobs", round(count), "count"),
                    Evidence("most of the SMs' time that they took", used, "%"),
                    Evidence("device memory that they hold", used_bytes, "bytes"),
                ),
                subject=gpu.name,
            )
            yield replace(finding, severity="info")
