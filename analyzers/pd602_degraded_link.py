"""PD602: the PCIe link runs below what device and slot can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from perfdoctor.analyzers._nvml_load import GpuUnderLoad, find_gpus_under_load, last_share_of
from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    Rank,
    RankAnalyzer,
    Saving,
    copy_kinds_of,
    read_advice,
    scale_durations,
    vocabulary,
)
from perfdoctor.rules import intervals as iv

# Bytes a lane and direction moves in a second, by generation (PCI-SIG: transfer rate and encoding).
_LANE_GB_PER_S: Mapping[int, float] = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


class DegradedLink(RankAnalyzer):
    """The PCIe link of the GPU has fewer lanes, or a lower generation, than it could have."""

    rule = "PD602"
    name = "degraded-link"
    needs = frozenset({"gpu_items", "facts", "nvml"})
    # min_share: of the step, a low finding's worth. min_samples: half a second: links change their
    # generation within milliseconds of a load.
    defaults = {"min_share": 0.01, "min_samples": 10}
    references = ("https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding where the link is degraded and copies would be faster."""
        for gpu in find_gpus_under_load(rank):
            rates = _link_rates(gpu)
            # With several GPUs it is not known by NVML's number which of them a copy of the trace went to.
            if rates is None or not gpu.is_alone or gpu.linked < self.settings["min_samples"]:
                continue
            now, best = rates
            direction = copy_kinds_of(rank.trace).direction
            copies = rank.copies.in_steps().where(np.isin(direction, (vocabulary.HTOD, vocabulary.DTOH)))
            saved_share = 1 - now / best
            freed = last_share_of(copies.time, max(saved_share, 0.0))
            cost_ns = rank.per_step(iv.total(freed))
            if saved_share <= 0 or not self.exceeds_min_share(rank, cost_ns):
                continue
            full_link = f"generation {gpu.facts.max_pcie_generation:.0f} x{gpu.facts.max_pcie_width:.0f}"
            yield self.finding(
                rank,
                title=(
                    f"The PCIe link of {gpu.name} runs as generation {gpu.pcie_generation} x{gpu.pcie_width} under "
                    f"load, and could run as {full_link}"
                ),
                cost_ns=cost_ns,
                saving=Saving(0, None, cost_ns, "bounded"),
                advice=read_advice("degraded link"),
                claim=Claim(freed),
                edit=scale_durations(copies.rows, saved_share),
                confidence=0.8,
                location=copies.location,
                evidence=(
                    Evidence("link under load", round(now, 1), "GB/s"),
                    Evidence("link at its best", round(best, 1), "GB/s"),
                    Evidence("samples under load", gpu.linked, "count"),
                    Evidence("copies between host and device, per {unit}", rank.per_step(copies.time_ns), "ns"),
                ),
                subject=gpu.name,
            )


def _link_rates(gpu: GpuUnderLoad) -> tuple[float, float] | None:
    """The link's rate under load and at its best, in GB/s; None where NVML does not say."""
    now_lane = _LANE_GB_PER_S.get(gpu.pcie_generation or 0)
    best_lane = _LANE_GB_PER_S.get(int(gpu.facts.max_pcie_generation or 0))
    best_width = gpu.facts.max_pcie_width
    if now_lane is None or best_lane is None or not gpu.pcie_width or not best_width:
        return None
    return now_lane * gpu.pcie_width, best_lane * best_width
