"""EX001: many small copies to the device where one large one would do."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving


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

    rule = "EX001"
    name = "small-copies"
    needs = frozenset({"kernels"})
    defaults = {"max_bytes": 4096, "min_copies": 10}
    references = ("https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#data-transfer-between-host-and-device",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when there are `min_copies` a step."""
        copies = rank.copies.copying("HtoD").in_steps()
        sizes = copies.table.bytes
        small = copies.where((sizes >= 0) & (sizes <= self.settings["max_bytes"]))
        copies_per_step = len(small) / max(rank.steps.count, 1)
        if copies_per_step < self.settings["min_copies"]:
            return
        cost = rank.per_step(small.time_ns)
        yield self.finding(
            rank,
            title=f"{copies_per_step:.0f} small copies to the device in each step",
            cost_ns=cost,
            saving=Saving(0, None, cost, "bounded"),
            advice="Gather the values in one pinned tensor and copy that.",
            fix="values.pin_memory().to(device, non_blocking=True)",
            claim=Claim(small.time),
            confidence=0.5,
            evidence=(Evidence("copies per {unit}", copies_per_step, "count"),),
        )
