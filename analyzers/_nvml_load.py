"""What NVML said of a GPU while the recorded steps kept it busy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from perfdoctor.rules import BANDWIDTH, GpuQuery, Intervals, NvmlDevice, Rank
from perfdoctor.rules import intervals as iv


class ThrottleReason(NamedTuple):
    """Why clocks were reduced: the share (0 to 1) of the samples under load, and the mean clock in these."""

    share: float
    sm_mhz: float


class GpuUnderLoad(NamedTuple):
    """A GPU of the process in the base, timing and evidence windows. What NVML did not say is None.

    Attributes:
        facts: What was captured of the device, the constant figures among it.
        is_alone: Whether it is the only GPU of the process, so that all kernels ran on it.
        clocked: Samples under load with a clock and its reasons.
        linked: Samples under load with generation and width of the link.
        reasons: Why clocks were reduced, by NVML's names.
        sm_mhz: The mean clock.
        power_w, temperature_c: The means.
        pcie_generation, pcie_width: The most that was seen under load: an idle link rests below.
    """

    facts: NvmlDevice
    is_alone: bool
    clocked: int
    linked: int
    reasons: Mapping[str, ThrottleReason]
    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    pcie_generation: int | None
    pcie_width: int | None

    @property
    def name(self) -> str:
        """The device in a sentence."""
        return "the GPU" if self.is_alone or self.facts.device is None else f"GPU {self.facts.device}"


def find_gpus_under_load(rank: Rank) -> list[GpuUnderLoad]:
    """The GPUs of a process that NVML sampled."""
    devices = rank.facts.nvml.devices
    return [_pool_windows(device, is_alone=len(devices) == 1) for device in devices]


def find_clocked_kernels(rank: Rank, gpu: GpuUnderLoad) -> GpuQuery:
    """The kernels whose time goes with the clock of the SMs: all in the steps that memory does not bound.

    None where the process has several GPUs: which of them a kernel of the trace ran on is not known by NVML's number.
    """
    kernels = rank.kernels.in_steps()
    is_computing = (rank.roof_classes >= 0) & (rank.roof_classes != BANDWIDTH)
    return kernels.where(is_computing & gpu.is_alone).where(~rank.kernels.of_category("communication").mask)


def last_share_of(time: Intervals, share: float) -> Intervals:
    """The last share (0 to 1) of each interval: what a claim of kernels that only get faster is made of."""
    freed_ns = np.round(share * (time[:, 1] - time[:, 0])).astype(np.int64)
    return iv.union(time[:, 1] - freed_ns, time[:, 1])


def _pool_windows(device: NvmlDevice, *, is_alone: bool) -> GpuUnderLoad:
    windows = device.under_load.values()
    total = sum(window.clocked or 0 for window in windows)
    counts: Counter[str] = Counter()
    mhz: defaultdict[str, float] = defaultdict(float)
    for window in windows:
        for name, reason in window.reasons.items():
            if reason.sm_mhz is not None and reason.samples:
                counts[name] += reason.samples
                mhz[name] += reason.sm_mhz * reason.samples
    reasons = {name: ThrottleReason(n / total, mhz[name] / n) for name, n in counts.items() if n and total}
    return GpuUnderLoad(
        device,
        is_alone,
        total,
        sum(window.linked or 0 for window in windows),
        reasons,
        _mean((window.sm_mhz, window.clocked) for window in windows),
        _mean((window.power_w, window.busy) for window in windows),
        _mean((window.temperature_c, window.busy) for window in windows),
        max((window.pcie_generation for window in windows if window.pcie_generation is not None), default=None),
        max((window.pcie_width for window in windows if window.pcie_width is not None), default=None),
    )


def _mean(values: Iterable[tuple[float | None, int | None]]) -> float | None:
    """The mean of numbers, each with how many samples it is of."""
    known = [(number, count) for number, count in values if number is not None and count]
    return sum(number * count for number, count in known) / sum(count for _, count in known) if known else None
