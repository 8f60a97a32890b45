"""PD207: matrix products in code for an older architecture than the GPU's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from perfdoctor.rank import Rank
from perfdoctor.report.finding import Evidence, Finding
from perfdoctor.rules.analyzer import RankAnalyzer
from perfdoctor.rules.matrix_kernels import LEAST_TIME_NS, Remedy, on_tensor_cores, saved_share
from perfdoctor.rules.top_kernels import top_kernels, top_op
from perfdoctor.savings.edits import scale_durations
from perfdoctor.savings.saving import Claim, Saving
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables import intervals as iv
from perfdoctor.trace.tables.distinct import distinct
from perfdoctor.trace.tables.rows import GpuRows

_SM = re.compile(r"sm(\d{2,3})\Z")
_HOPPER, _BLACKWELL = 9, 10  # major compute capabilities with matrix instructions of their own
# What older instructions reach of the peak: mma.sync 60 to 65 % on Hopper by published microbenchmarks (Luo et al.
# 2024); nothing was published for Blackwell.
_CAP: Mapping[int, float] = MappingProxyType({_HOPPER: 0.65})


class OldArchitectureKernels(RankAnalyzer):
    """Matrix products run in kernels that were written for an older architecture than the GPU's.

    What it finds:
        GEMM kernels on Tensor Cores with code for sm_70 to sm_89 on Hopper or data-centre Blackwell.

    Why it costs time:
        Each of these architectures has matrix instructions of its own (wgmma on Hopper, tcgen05 on Blackwell). The
        older mma.sync still runs there, but reaches about 60 % of Hopper's peak.

    How it is measured:
        Time of such kernels of at least `min_kernel_ns` each: for short ones libraries choose small tiles of older
        code on purpose. Those with misaligned dimensions are PD202's, those whose recorded shapes say that memory
        bounds them are left out, as are those that reach more than the older instructions could. Ada and GeForce
        Blackwell use mma.sync themselves. The saving is bounded by the roofline, else by the ratio of the
        instructions' peaks.

    How to fix:
        Newer cuBLAS or cuDNN (a PyTorch built with a newer CUDA), torch.compile with max-autotune, cuBLASLt
        (TORCH_BLAS_PREFER_CUBLASLT=1), custom kernels compiled for the GPU at hand; larger products.

    When it is wrong:
        Libraries measure: for some shapes their older kernels are the fastest that they have. Low, unless it takes a
        fifth of the step.

    Needs:
        Kernels and the name or capability of the device.

    References:
        Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking".
    """

    rule: ClassVar[str] = "PD207"
    name: ClassVar[str] = "old-architecture-kernels"
    needs: ClassVar[frozenset[str]] = frozenset({"kernels"})
    # min_share: some 4 tenths of it can be saved, so that under 5 % nobody would act. large_share: below it the
    # severity is low, whatever the cost. min_kernel_ns: up to 20 us a grid does not fill an H100 (gpu/bounds.py).
    defaults: ClassVar[Mapping[str, float]] = MappingProxyType(
        {"min_share": 0.05, "large_share": 0.2, "min_kernel_ns": 20_000}
    )
    references: ClassVar[tuple[str, ...]] = ("https://arxiv.org/abs/2402.13499",)

    def analyze_rank(self, rank: Rank) -> Iterator[Finding]:
        """One finding when such kernels take at least `min_share` of the step."""
        major = _major(rank)
        if major is None or not _HOPPER <= major <= _BLACKWELL:
            return
        rows = self._old(rank, major)
        time = rank.time_in_window(rows)
        cost = rank.per_step(iv.total(time))
        if iv.total(time) < LEAST_TIME_NS or not self.exceeds_min_share(rank, cost):
            return
        op = top_op(rank, rows)
        saved = saved_share(rank, rows, _remedy(rank, rows, major))
        finding = self.finding(
            rank,
            title=f"Matrix products run in kernels for {_architectures(rank, rows)} on an sm{10 * major} GPU",
            cost_ns=cost,
            saving=Saving(0, None, round(cost * saved), "bounded"),
            advice="Use a PyTorch built with a newer CUDA, torch.compile with max-autotune, or kernels compiled for "
            "this GPU: the older instructions reach about 6 tenths of Hopper's peak, and less of Blackwell's.",
            fix='model = torch.compile(model, mode="max-autotune")',
            claim=Claim(time, kernels=True),
            confidence=0.5,
            location=rank.locations.of_op(op) if op else None,
            evidence=(
                Evidence("most that the older instructions reach of the peak", _percent(_CAP.get(major)), "%"),
                Evidence("launched by", op),
                *top_kernels(rank, rows),
            ),
            edit=scale_durations(GpuRows(rank.trace.gpu, rows), saved),
        )
        large = self.exceeds_min_share(rank, cost, self.settings["large_share"])
        yield finding if large else replace(finding, severity="low")

    def _old(self, rank: Rank, major: int) -> BoolArray:
        """For each GPU item whether it is such a kernel."""
        rows = on_tensor_cores(rank, "gemm")
        rows &= rank.kernel_classes.match_rows(lambda k: 7 <= _generation(k.arch) < major and not k.slow_path)
        rows &= rank.trace.gpu.dur_ns >= self.settings["min_kernel_ns"]
        rows &= ~rank.bounds.match_rows("bandwidth", "invalid") | rank.bounds.assumed
        with np.errstate(invalid="ignore"):
            return rows & ~(rank.bounds.efficiency > _CAP.get(major, 1.0))


def _major(rank: Rank) -> int | None:
    """Major compute capability of the device; None for AMD's and unknown ones."""
    if rank.hardware.vendor == "amd":
        return None
    if rank.device is not None:
        return rank.device.compute_capability[0] if rank.device.compute_capability else None
    capability = rank.hardware.capability
    return capability[0] if capability and rank.hardware.vendor == "nvidia" else None


def _generation(arch: str | None) -> int:
    """Major number of an NVIDIA architecture, such as 8 for `sm86`; 0 for others."""
    match = _SM.match(arch or "")
    return int(match[1]) // 10 if match else 0


def _architectures(rank: Rank, rows: BoolArray) -> str:
    codes = distinct(rank.trace.gpu.name[rows]).tolist()
    return ", ".join(sorted({rank.kernel_classes.by_name[code].arch or "" for code in codes}))


def _remedy(rank: Rank, rows: BoolArray, major: int) -> Remedy:
    """Kernels for this architecture, in the operand type of the costliest ones."""
    operand = rank.verdicts.operand[rank.kernel_costs.kind[rows]]
    totals = np.bincount(operand, weights=rank.trace.gpu.dur_ns[rows])
    name = rank.verdicts.operands[int(totals.argmax())]
    rate = rank.device.attainable_flops(rank.device.matrix_peak_type(name)) if rank.device and name else None
    return Remedy(peak_ratio=1 / _CAP[major] if major in _CAP else None, flops_per_s=rate)


def _percent(share: float | None) -> int | None:
    return None if share is None else round(100 * share)
