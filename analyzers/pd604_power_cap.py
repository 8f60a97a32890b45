"""PD604: the power limit sets the clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfdoctor.analyzers._nvml_load import (
    GpuUnderLoad,
    ThrottleReason,
    find_clocked_kernels,
    find_gpus_under_load,
    last_share_of,
)
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, scale_durations
from perfdoctor.rules import intervals as iv


class PowerCap(RankAnalyzer):
    """The GPU reaches its power limit and reduces its clock."""

    rule = "PD604"
    name = "power-cap"
    needs = frozenset({"kernels", "facts", "nvml"})
    # min_share: of the step, a low finding's worth. min_samples: half a second. min_capped: a limit that
    # binds in less than half of the samples sets the pace of peaks only. max_clock: boost clocks move by some per cent
    # with temperature alone. lowered: limits are set in whole watts; within 2 % they are the default's.
    defaults = {"min_share": 0.01, "min_samples": 10, "min_capped": 0.5, "max_clock": 0.95, "lowered": 0.98}
    references = (
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html",
        "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",
    )

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each GPU whose clock the power limit reduces."""
        for gpu in find_gpus_under_load(rank):
            capped, max_mhz = gpu.reasons.get("sw_power_cap"), gpu.facts.max_sm_mhz
            limit_w, default_w = gpu.facts.power_limit_w, gpu.facts.default_power_limit_w
            if capped is None or not max_mhz or not limit_w or not self._is_capped(gpu, capped, max_mhz):
                continue
            if default_w is None or limit_w >= self.settings["lowered"] * default_w:
                if self.exceeds_min_share(rank, rank.per_step(find_clocked_kernels(rank, gpu).time_ns)):
                    yield self._report_own_limit(rank, gpu, capped, max_mhz, limit_w)
            else:
                yield from self._check_lowered_limit(rank, gpu, capped, max_mhz, limit_w, default_w)

    def _is_capped(self, gpu: GpuUnderLoad, capped: ThrottleReason, max_mhz: float) -> bool:
        """Whether the limit reduces the clock for long enough."""
        enough = capped.share * gpu.clocked >= self.settings["min_samples"]
        return (
            enough
            and capped.share >= self.settings["min_capped"]
            and capped.sm_mhz <= self.settings["max_clock"] * max_mhz
        )

    def _report_own_limit(
        self, rank: Rank, gpu: GpuUnderLoad, capped: ThrottleReason, max_mhz: float, limit_w: float
    ) -> Finding:
        """For information: the default limit is the card's nature."""
        finding = self.finding(
            rank,
            title=f"The power limit of {limit_w:,.0f} W sets the clock of {gpu.name}: {capped.sm_mhz:,.0f} of "
            f"{max_mhz:,.0f} MHz under load",
            advice="The limit is the card's own: this is how it runs under this load, and no fault. Datasheets' peaks "
            "are of the maximal clock. What takes less power (a narrower dtype, fewer bytes) raises the clock.",
            evidence=_evidence(gpu, capped),
            subject=gpu.name,
        )
        return replace(finding, severity="info")

    def _check_lowered_limit(
        self, rank: Rank, gpu: GpuUnderLoad, capped: ThrottleReason, max_mhz: float, limit_w: float, default_w: float
    ) -> Iterator[Finding]:
        kernels = find_clocked_kernels(rank, gpu)
        best_mhz = min(max_mhz, capped.sm_mhz * default_w / limit_w)
        saved_share = capped.share * (1 - capped.sm_mhz / best_mhz)
        freed = last_share_of(kernels.time, saved_share)
        cost_ns = rank.per_step(iv.total(freed))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        kernels_ns = rank.per_step(kernels.time_ns)
        yield self.finding(
            rank,
            title=(
                f"The power limit of {gpu.name} is lowered to {limit_w:,.0f} of {default_w:,.0f} W and sets the clock: "
                f"{capped.sm_mhz:,.0f} of {max_mhz:,.0f} MHz under load"
            ),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice="Somebody has lowered the limit. Where that is not meant, set the default one again, and look at "
            "the temperature afterwards.",
            fix=f"sudo nvidia-smi --power-limit={default_w:.0f}",
            claim=Claim(freed, kernels=True),
            edit=scale_durations(kernels.rows, saved_share),
            confidence=0.8,
            evidence=(
                *_evidence(gpu, capped),
                Evidence("kernel time that goes with the clock, per {unit}", kernels_ns, "ns"),
            ),
            subject=gpu.name,
        )


def _evidence(gpu: GpuUnderLoad, capped: ThrottleReason) -> tuple[Evidence, ...]:
    return (
        Evidence("samples under load", gpu.clocked, "count"),
        Evidence("of these at the power limit", round(100 * capped.share), "%"),
        Evidence("power limit in force", gpu.facts.power_limit_w, "W"),
        Evidence("default power limit", gpu.facts.default_power_limit_w, "W"),
        Evidence("power under load", None if gpu.power_w is None else round(gpu.power_w), "W"),
    )
