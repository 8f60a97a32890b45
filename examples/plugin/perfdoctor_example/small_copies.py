"""EX001: many small copies to the device where one large one would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor import Claim, Evidence, Finding, RankAnalyzer, Saving
from perfdoctor.rank import Rank
from perfdoctor.trace.tables import intervals as iv


class SmallCopies(RankAnalyzer):
    """Many small copies go to the device, each with the fixed cost of a copy.

    What it finds:
        Copies from the host to the device of at most `max_bytes`, when there are at least `min_copies` a step.

    Why it costs time:
        A copy of a few bytes takes as long as one of some ten kilobytes: 1 to 2 us on the device and 5 to 10 us of CPU.

    How it is measured:
        The time in which such copies ran, in the analysed steps.

    How to fix:
        Gather the values in one pinned tensor and copy that, or create them on the device.

    When it is wrong:
        Copies that other work covers cost the CPU's time only.

    Needs:
        GPU events.

    References:
        CUDA C++ Best Practices Guide, "Data Transfer Between Host and Device".
    """

    rule: ClassVar[str] = "EX001"
    name: ClassVar[str] = "small-copies"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType({"max_bytes": 4096, "min_copies": 10})
    references: ClassVar[tuple[str, ...]] = (
        "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#data-transfer-between-host-and-device",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when there are `min_copies` a step."""
        gpu = rank.trace.gpu
        small = (gpu.bytes >= 0) & (gpu.bytes <= self.settings["max_bytes"])
        rows = small & rank.trace.match_rows(gpu, "HtoD") & iv.contains(rank.window, gpu.start_ns)
        copies = int(np.count_nonzero(rows)) / max(rank.steps.count, 1)
        if copies < self.settings["min_copies"]:
            return
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        yield self.finding(
            rank,
            title=f"{copies:.0f} small copies to the device in each step",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Gather the values in one pinned tensor and copy that.",
            fix="values.pin_memory().to(device, non_blocking=True)",
            claim=Claim(time),
            confidence=0.5,
            evidence=(Evidence("copies per step", copies, "count"),),
        )
