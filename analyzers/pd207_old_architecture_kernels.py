"""PD207: matrix products in code for an older architecture than the GPU's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfdoctor.rules import (
    Claim,
    Evidence,
    Finding,
    GpuQuery,
    Rank,
    RankAnalyzer,
    advise,
    distinct,
    find_tensor_core_kernels,
    top_kernels,
    top_op,
)
from perfdoctor.rules.internal import MIN_TIME_NS, catch_up

_SM_NUMBER = re.compile(r"sm(\d{2,3})\Z")
_HOPPER, _BLACKWELL = 9, 10  # major compute capabilities with matrix instructions of their own
# What older instructions reach of the peak: mma.sync 60 to 65 % on Hopper by published microbenchmarks (Luo et al.
# 2024); nothing was published for Blackwell.
_OLD_PEAK_FRACTION: Mapping[int, float] = MappingProxyType({_HOPPER: 0.65})


class OldArchitectureKernels(RankAnalyzer):
    """Matrix products run in kernels that were written for an older architecture than the GPU's."""

    rule = "PD207"
    name = "old-architecture-kernels"
    needs = frozenset({"kernels"})
    # min_share: some 4 tenths of it can be saved, so that under 5 % nobody would act. large_share: below it the
    # severity is low, whatever the cost. min_kernel_ns: up to 20 us a grid does not fill an H100
    # (gpu/roofline/kernel_bounds.py).
    defaults = {"min_share": 0.05, "large_share": 0.2, "min_kernel_ns": 20_000}
    references = ("https://arxiv.org/abs/2402.13499",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        major = _major_capability(rank)
        if major is None or not _HOPPER <= major <= _BLACKWELL:
            return
        kernels = self._find_old_kernels(rank, major)
        time_ns = kernels.time_ns
        cost_ns = rank.per_step(time_ns)
        if time_ns < MIN_TIME_NS or not self.exceeds_min_share(rank, cost_ns):
            return
        op = top_op(rank, kernels.mask)
        old_fraction = _OLD_PEAK_FRACTION.get(major)
        after = catch_up(rank, kernels, "gemm", np.full(len(kernels), old_fraction or 0.0)).or_nothing()
        old_percent = None if old_fraction is None else round(100 * old_fraction)
        advice = advise("kernels of an old architecture", rank.context)
        finding = self.finding(
            rank,
            title=f"Matrix products run in kernels for {_list_architectures(rank, kernels)} on an sm{10 * major} GPU",
            cost_ns=cost_ns,
            saving=after.saving(cost_ns),
            advice=advice,
            claim=Claim(kernels.time, kernels=True),
            confidence=0.5,
            location=kernels.location,
            evidence=(
                Evidence("most that the older instructions reach of the peak", old_percent, "%"),
                Evidence("launched by", op),
                *top_kernels(rank, kernels.mask),
            ),
            edit=after.edit(kernels.rows),
        )
        is_large = self.exceeds_min_share(rank, cost_ns, self.settings["large_share"])
        yield finding if is_large else replace(finding, severity="low")

    def _find_old_kernels(self, rank: Rank, major: int) -> GpuQuery:
        """Products on Tensor Cores in older code that newer code could speed up."""
        kernels = find_tensor_core_kernels(rank, "gemm")
        kernels = kernels.of_class(lambda k: 7 <= _major_of_code(k.arch) < major and not k.slow_path)
        kernels = kernels.where(rank.trace.gpu.dur_ns >= self.settings["min_kernel_ns"])
        kernels = kernels.where(~rank.bounds.match_rows("bandwidth", "invalid") | rank.bounds.assumed)
        with np.errstate(invalid="ignore"):
            return kernels.where(~(rank.bounds.efficiency > _OLD_PEAK_FRACTION.get(major, 1.0)))


def _major_capability(rank: Rank) -> int | None:
    """Major compute capability of the device; None for AMD's devices and unknown ones."""
    if rank.hardware.vendor == "amd":
        return None
    if rank.device is not None:
        return rank.device.compute_capability[0] if rank.device.compute_capability else None
    capability = rank.hardware.capability
    return capability[0] if capability and rank.hardware.vendor == "nvidia" else None


def _major_of_code(arch: str | None) -> int:
    """Major number of the NVIDIA architecture that code is for, such as 8 for `sm86`; 0 for others."""
    match = _SM_NUMBER.match(arch or "")
    return int(match[1]) // 10 if match else 0


def _list_architectures(rank: Rank, kernels: GpuQuery) -> str:
    codes = distinct(rank.trace.gpu.name[kernels.mask]).tolist()
    return ", ".join(sorted({rank.kernel_classes.by_name[code].arch or "" for code in codes}))
