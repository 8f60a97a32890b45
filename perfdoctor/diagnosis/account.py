"""Where each nanosecond of the step went: the timeline over the whole trace, and the account over the analysed window.

Both follow contracts.md to the letter. The account is a partition: every instant of the window goes to the first of compute, bandwidth,
communication, memcpy, kernel_latency and the idle causes that covers it, so its details add up to the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from perfdoctor.trace.intervals import EMPTY, Intervals

BUSY_DETAILS = ("compute", "bandwidth", "communication", "memcpy", "kernel_latency")
IDLE_CAUSES = ("dataloader", "sync", "launch", "communication", "allocator", "unexplained")
DETAILS = (
    "compute",
    "bandwidth",
    "memcpy",
    "communication",
    "kernel_latency",
    *(f"idle_{cause}" for cause in IDLE_CAUSES),
)
BUCKETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "compute": ("compute",),
        "bandwidth": ("bandwidth", "memcpy"),
        "communication": ("communication",),
        "overhead": ("kernel_latency", *(f"idle_{cause}" for cause in IDLE_CAUSES)),
    }
)
TENSOR_CORE_USE = ("used", "slow_path", "not_used", "unknown")


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's GPU time over the whole trace, in ns; every figure is None when the trace has no GPU items."""

    rank: int | None = None
    window_ns: int | None = None
    busy_ns: int | None = None
    idle_ns: int | None = None
    computation_ns: int | None = None
    exposed_communication_ns: int | None = None
    exposed_memcpy_ns: int | None = None
    communication_ns: int | None = None
    memcpy_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Account:
    """One rank's window, split exactly.

    `detail` maps every name of DETAILS to ns, `buckets` sums them to compute, bandwidth, communication and overhead; each adds up to
    `window_ns`. `tensor_core` is the time of gemm, convolution and attention kernels by use of Tensor Cores, None where there is no GPU.
    `parts` holds the intervals behind `detail`, `steps` the steps (n, 2): for exports, not part of the JSON report.
    """

    rank: int | None
    window_ns: int
    detail: Mapping[str, int]
    tensor_core: Mapping[str, int | None]
    parts: Mapping[str, Intervals] = field(default_factory=dict, repr=False, compare=False)
    steps: Intervals = field(default_factory=lambda: EMPTY, repr=False, compare=False)

    @property
    def buckets(self) -> dict[str, int]:
        """The four words of the field: compute, bandwidth, communication, overhead, in ns."""
        return {bucket: sum(self.detail[name] for name in names) for bucket, names in BUCKETS.items()}

    def to_dict(self) -> dict[str, Any]:
        """As in the report schema."""
        return {
            "rank": self.rank,
            "window_ns": self.window_ns,
            "buckets": self.buckets,
            "detail": dict(self.detail),
            "tensor_core": dict(self.tensor_core),
        }
