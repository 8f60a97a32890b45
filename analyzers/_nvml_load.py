"""What NVML said of a GPU while the recorded steps kept it busy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from perfdoctor.rules import BANDWIDTH, GpuQuery, Intervals, Rank, captured_list, captured_part
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

    facts: Mapping[str, Any]
    is_alone: bool
    clocked: int
    linked: int
    reasons: Mapping[str, ThrottleReason]
    sm_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    pcie_generation: int | None
    pcie_width: int | None

    def number(self, name: str) -> float | None:
        """A constant figure of the device, such as `max_sm_mhz`."""
        return _number(self.facts.get(name))

    @property
    def name(self) -> str:
        """The device in a sentence."""
        index = self.facts.get("device")
        return "the GPU" if self.is_alone or not isinstance(index, int) else f"GPU {index}"


def find_gpus_under_load(rank: Rank) -> list[GpuUnderLoad]:
    """The GPUs of a process that NVML sampled."""
    devices = captured_list(captured_part(rank.facts, "nvml"), "devices")
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


def _pool_windows(device: Mapping[str, Any], *, is_alone: bool) -> GpuUnderLoad:
    windows = [each for each in captured_part(device, "under_load").values() if isinstance(each, dict)]
    clocked = [(window, _count(window.get("clocked"))) for window in windows]
    total = sum(count for _, count in clocked)
    counts: Counter[str] = Counter()
    mhz: defaultdict[str, float] = defaultdict(float)
    for window in windows:
        for name, reason in captured_part(window, "reasons").items():
            number = _number(reason.get("sm_mhz")) if isinstance(reason, dict) else None
            if number is not None:
                counts[name] += _count(reason.get("samples"))
                mhz[name] += number * _count(reason.get("samples"))
    reasons = {name: ThrottleReason(n / total, mhz[name] / n) for name, n in counts.items() if n and total}
    return GpuUnderLoad(
        device,
        is_alone,
        total,
        sum(_count(window.get("linked")) for window in windows),
        reasons,
        _mean([(window.get("sm_mhz"), count) for window, count in clocked]),
        _mean([(window.get("power_w"), _count(window.get("busy"))) for window in windows]),
        _mean([(window.get("temperature_c"), _count(window.get("busy"))) for window in windows]),
        _highest(windows, "pcie_generation"),
        _highest(windows, "pcie_width"),
    )


def _mean(values: list[tuple[object, int]]) -> float | None:
    known = [(number, count) for number, count in ((_number(value), count) for value, count in values) if count]
    summed = [(number, count) for number, count in known if number is not None]
    return sum(n * count for n, count in summed) / sum(count for _, count in summed) if summed else None


def _highest(windows: list[dict[str, Any]], name: str) -> int | None:
    return max((value for window in windows if type(value := window.get(name)) is int), default=None)


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= float(value) < 1e12 else None  # type: ignore[arg-type]


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 40 else 0
