"""The device that a trace was recorded on, by the table of devices and by what the trace records of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.gpu import Device, find_device, has_tensor_cores
from perfdoctor.gpu.calibration import apply_calibration, find_calibration
from perfdoctor.trace.tables.model import Trace

DeviceSource: TypeAlias = Literal["trace", "kernels", "option"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is known of the device.

    Attributes:
        device: Peaks and bandwidths; None when the device is not in the table. With the rates that `perfdoctor
            calibrate` measured on a device of that name, where it did.
        label: Its name, as given by the user, in the trace or in the table; None when unknown.
        capability: CUDA compute capability by the trace; None where not recorded.
        sm_count: Streaming multiprocessors, by the trace or by the table; None when unknown.
        vendor: "nvidia", "amd" or None.
        tensor_cores: Whether it has Tensor Cores (matrix cores), also proven by a kernel that uses them; None when
            unknown.
        source: Where the label is from: the trace, its kernels, or the user; None when unknown.
    """

    device: Device | None
    label: str | None
    capability: tuple[int, int] | None
    sm_count: int | None
    vendor: str | None
    tensor_cores: bool | None
    source: DeviceSource | None = None


def hardware_of(trace: Trace, classes: KernelClasses, given_name: str | None = None) -> Hardware:
    """The device of a trace.

    Args:
        trace: The trace.
        classes: The classes of its kernels.
        given_name: The device's name where the user gave it; it overrides the trace.
    """
    recorded = trace.device
    name, capability = (recorded.name, recorded.capability) if given_name is None else (given_name, None)
    device = find_device(name, capability, trace.vendor if given_name is None else None)
    calibration = find_calibration(name)
    if calibration is not None:
        device = apply_calibration(device, calibration, recorded.capability)
    tensor_cores = has_tensor_cores(name, capability, trace.vendor)
    if tensor_cores is None and classes.match_rows(lambda kernel: kernel.tensor_core == "yes").any():
        tensor_cores = True
    return Hardware(
        device=device,
        label=given_name or recorded.name or (device.name if device else None),
        capability=recorded.capability,
        sm_count=recorded.sm_count or (device.sm_count if device else None),
        vendor=trace.vendor,
        tensor_cores=tensor_cores,
        source="option" if given_name else "trace" if recorded.name else "kernels" if device else None,
    )
