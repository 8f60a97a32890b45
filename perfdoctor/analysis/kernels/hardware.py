"""The device that a trace was recorded on, by the table of devices and by what the trace records of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu import Device, find_device, has_tensor_cores
from perfdoctor.gpu.calibration import apply_calibration, find_calibration
from perfdoctor.gpu.devices import PrecisionAdvice, advise_precision, all_devices
from perfdoctor.gpu.generations import (
    capability_of,
    describe_generations,
    generation_of,
    generations_have_tensor_cores,
    possible_generations,
)
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.model import Trace

DeviceSource: TypeAlias = Literal["trace", "kernels", "option"]

_BY_KERNELS = "(by its kernels)"
_SAME = 1.02  # peaks of one chip at one clock, as datasheets round them
_MODEL = re.compile(r"(?:NVIDIA|AMD) ([A-Z]+\d+)")  # V100, V100S and V100 SXM2 are one model


@frozen_dataclass
class Hardware:
    """What is known of the device.

    Attributes:
        device: Peaks and bandwidths; None when the device is not in the table. With the rates that `perfdoctor
            calibrate` measured on a device of that name, where it did. Where kernels leave several devices of the same
            peaks, what is lowest among them.
        label: Its name, as given by the user, in the trace or in the table; or what its kernels leave, such as
            "Volta or Turing GPU (by its kernels)"; None when unknown.
        capability: CUDA compute capability by the trace, else the one that its kernels leave; None when unknown.
        sm_count: Streaming multiprocessors, by the trace or by the table; None when unknown.
        vendor: "nvidia", "amd" or None.
        tensor_cores: Whether it has Tensor Cores (matrix cores), also proven by a kernel that uses them; None when
            unknown.
        source: Where the label is from: the trace, its kernels, or the user; None when unknown.
        candidates: The devices of the table that the kernels leave, where these are all there are; empty otherwise.
    """

    device: Device | None
    label: str | None
    capability: tuple[int, int] | None
    sm_count: int | None
    vendor: str | None
    tensor_cores: bool | None
    source: DeviceSource | None = None
    candidates: tuple[Device, ...] = ()

    @property
    def precision_advice(self) -> PrecisionAdvice | None:
        """Which precision to choose for float32 products; of several candidates' gains the least."""
        if self.device is not None or not self.candidates:
            return advise_precision(self.device, self.capability, self.vendor)
        advices = [advice for advice in map(advise_precision, self.candidates) if advice is not None]
        if len({advice.precision for advice in advices}) != 1:
            return None
        ratios = [advice.peak_ratio for advice in advices if advice.peak_ratio is not None]
        return PrecisionAdvice(advices[0].precision, min(ratios, default=None))


def hardware_of(trace: Trace, classes: KernelClasses, given_name: str | None = None) -> Hardware:
    """The device of a trace.

    A name that the user gave overrides the trace.
    """
    recorded = trace.device
    if given_name is None and recorded.name is None:
        by_kernels = _hardware_by_kernels(trace, classes)
        if by_kernels is not None:
            return by_kernels
    if given_name is None:
        name, capability = recorded.name, recorded.capability
        device = find_device(name, capability, trace.vendor, recorded.memory_bytes, recorded.sm_count)
    else:
        name, capability = given_name, None
        device = find_device(name)
    calibration = find_calibration(name)
    if calibration is not None:
        device = apply_calibration(device, calibration, recorded.capability)
    return Hardware(
        device=device,
        label=given_name or recorded.name or (device.name if device else None),
        capability=recorded.capability,
        sm_count=recorded.sm_count or (device.sm_count if device else None),
        vendor=trace.vendor,
        tensor_cores=_prove_tensor_cores(has_tensor_cores(name, capability, trace.vendor), classes),
        source="option" if given_name else "trace" if recorded.name else None,
    )


def _prove_tensor_cores(known: bool | None, classes: KernelClasses) -> bool | None:
    """Whether there are Tensor Cores: as known, else True where a kernel uses them."""
    if known is None and classes.match_rows(lambda kernel: kernel.tensor_core == "yes").any():
        return True
    return known


def _hardware_by_kernels(trace: Trace, classes: KernelClasses) -> Hardware | None:
    """What the kernels prove of a device that nothing names; None where they prove no generation."""
    sm_count = trace.device.sm_count
    if len(occurring(trace.gpu.device)) > 1:
        return None
    architectures = (kernel.arch for kernel in classes.by_name.values() if kernel.arch is not None)
    generations = possible_generations(architectures, sm_count)
    if not generations:
        return None
    candidates = _find_candidates(generations, sm_count)
    models = sorted({match[1] for match in map(_MODEL.match, (device.name for device in candidates)) if match})
    # More than two names help nobody.
    what = " or ".join(models) if 0 < len(models) <= 2 else describe_generations(generations)
    capability = candidates[0].compute_capability if candidates else capability_of(generations)
    return Hardware(
        device=_lowest_of(candidates, f"{what} {_BY_KERNELS}"),
        label=f"{what} {_BY_KERNELS}",
        capability=trace.device.capability or capability,
        sm_count=sm_count,
        vendor=trace.vendor,
        tensor_cores=_prove_tensor_cores(generations_have_tensor_cores(generations, sm_count), classes),
        source="kernels",
        candidates=candidates,
    )


def _find_candidates(generations: tuple[str, ...], sm_count: int | None) -> tuple[Device, ...]:
    """The devices of these generations with `sm_count` multiprocessors, if the table surely has them all.

    The table has them all where all are of one data-centre chip (x.0), of which there are few products. GeForce and
    laptop parts are too many. A TITAN V counts as the V100 whose chip it has.
    """
    if sm_count is None:
        return ()
    found = tuple(
        device
        for device in all_devices()
        if device.sm_count == sm_count and generation_of(device.compute_capability, device.gfx_arch) in generations
    )
    chips = {device.compute_capability for device in found}
    return found if len(chips) == 1 and all(chip is not None and chip[1] == 0 for chip in chips) else ()


def _lowest_of(candidates: tuple[Device, ...], name: str) -> Device | None:
    """A device with the lowest figures of the candidates, if these have the same peaks; else None.

    Where peaks differ no single one will do: what a fix promises takes the lowest, what proves a verdict the highest.
    """
    if not candidates:
        return None
    shared = set.intersection(*(set(device.peaks_flops) for device in candidates))
    peaks = {dtype: [device.peaks_flops[dtype] for device in candidates] for dtype in sorted(shared)}
    if not peaks or any(max(of_type) > _SAME * min(of_type) for of_type in peaks.values()):
        return None
    return _take_lowest(candidates, name)


def find_lowest_device(classes: KernelClasses) -> Device | None:
    """A device with the lowest figures of all those of AMD whose architecture the kernels are for; None where unknown.

    AMD's compiler builds for one architecture, of which the table has all data-centre devices. What is far below the
    lowest peak is far below that of whatever device it is.
    """
    arches = {kernel.arch for kernel in classes.by_name.values() if kernel.arch and kernel.arch.startswith("gfx")}
    found = tuple(device for device in all_devices() if device.gfx_arch in arches) if len(arches) == 1 else ()
    if not found:
        return None
    return _take_lowest(found, " or ".join(sorted({device.name.split(" (")[0] for device in found})))


def _take_lowest(candidates: tuple[Device, ...], name: str) -> Device:
    """A device with the lowest figures of the candidates; a peak that not all of them have is left out."""
    shared = set.intersection(*(set(device.peaks_flops) for device in candidates))
    memories = {device.memory_bytes for device in candidates}
    return replace(
        candidates[0],
        name=name,
        peaks_flops=MappingProxyType(
            {dtype: min(device.peaks_flops[dtype] for device in candidates) for dtype in sorted(shared)}
        ),
        memory_bandwidth_bytes_per_s=_min_known(device.memory_bandwidth_bytes_per_s for device in candidates),
        memory_bytes=memories.pop() if len(memories) == 1 else None,
        link_bytes_per_s=_min_known(device.link_bytes_per_s for device in candidates),
        pcie_bytes_per_s=_min_known(device.pcie_bytes_per_s for device in candidates),
        achievable_gemm_fraction=_min_known(device.achievable_gemm_fraction for device in candidates),
        achievable_bandwidth_fraction=_min_known(device.achievable_bandwidth_fraction for device in candidates),
        checked="by its kernels",
        source=f"the lowest figures of {', '.join(device.name for device in candidates)}",
    )


def _min_known(values: Iterable[float | None]) -> float | None:
    """The least value that is known; None where none is."""
    return min((value for value in values if value is not None), default=None)
