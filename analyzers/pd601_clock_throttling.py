"""PD601: the GPU's clocks are reduced while the steps compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfdoctor.analyzers._nvml_load import GpuUnderLoad, find_clocked_kernels, find_gpus_under_load, last_share_of
from perfdoctor.rules import Claim, Evidence, Finding, Rank, RankAnalyzer, Saving, read_texts, scale_durations
from perfdoctor.rules import intervals as iv


class ClockThrottling(RankAnalyzer):
    """The GPU reduces its clocks while the steps compute, though power would allow more."""

    rule = "PD601"
    name = "clock-throttling"
    needs = frozenset({"kernels", "facts", "nvml"})
    # min_share: of the step, a low finding's worth. min_samples: half a second, so that one slow sample
    # is none. min_throttled: below a fifth of the time a clock costs less than runs differ. max_clock: boost clocks go
    # in steps of 15 MHz and move by some per cent with temperature alone.
    defaults = {"min_share": 0.01, "min_samples": 10, "min_throttled": 0.2, "max_clock": 0.95}
    references = ("https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """A finding for each GPU and cause that reduces clocks for long enough."""
        for gpu in find_gpus_under_load(rank):
            for cause in read_texts("clocks").values():
                yield from self._check_cause(rank, gpu, cause)

    def _check_cause(self, rank: Rank, gpu: GpuUnderLoad, cause: Mapping[str, Any]) -> Iterator[Finding]:
        is_of_heat = "hw_thermal" in gpu.reasons and "hw_power_brake" not in gpu.reasons
        if "hw_power_brake" in cause["reasons"] and is_of_heat:
            return  # NVML gives the slowdown beside its cause, which is heat
        found = [gpu.reasons[name] for name in cause["reasons"] if name in gpu.reasons]
        max_mhz = gpu.facts.max_sm_mhz
        if not found or not max_mhz:
            return
        worst = max(found)
        samples = worst.share * gpu.clocked
        if samples < self.settings["min_samples"] or worst.share < self.settings["min_throttled"]:
            return
        if worst.sm_mhz > self.settings["max_clock"] * max_mhz:
            return
        kernels = find_clocked_kernels(rank, gpu)
        saved_share = worst.share * (1 - worst.sm_mhz / max_mhz)
        freed = last_share_of(kernels.time, saved_share)
        cost_ns = rank.per_step(iv.total(freed))
        if not self.exceeds_min_share(rank, cost_ns):
            return
        yield self.finding(
            rank,
            title=(
                f"The clock of {gpu.name} is reduced to {worst.sm_mhz:,.0f} of {max_mhz:,.0f} MHz in {worst.share:.0%} "
                f"of the time under load: {cause['what']}"
            ),
            cost_ns=cost_ns,
            saving=Saving(0, None, cost_ns, "bounded"),
            advice=cause["advice"],
            fix=cause["fix"],
            claim=Claim(freed, kernels=True),
            edit=scale_durations(kernels.rows, saved_share),
            confidence=0.8,
            evidence=(
                Evidence("samples under load", gpu.clocked, "count"),
                Evidence("mean clock under load", _round(gpu.sm_mhz), "MHz"),
                Evidence("temperature under load", _round(gpu.temperature_c), "C"),
                Evidence("power under load", _round(gpu.power_w), "W"),
                Evidence("kernel time that goes with the clock, per {unit}", rank.per_step(kernels.time_ns), "ns"),
            ),
            subject=f"{gpu.name}: {cause['what']}",
        )


def _round(value: float | None) -> int | None:
    return None if value is None else round(value)
