"""What `perfdoctor calibrate` measured: the value, the file that stores it, and what it adds to a device.

There is one JSON file for each device name, in the folder that PERFDOCTOR_CALIBRATION_DIR names, else in the user's
data folder.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from perfdoctor.errors import InputError
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.devices import Device, vendor_of

SCHEMA = "perfdoctor.calibration/1"
FOLDER_VARIABLE = "PERFDOCTOR_CALIBRATION_DIR"
# Roofs that move by more would move the account's border between compute and latency as well.
MAX_SPREAD = 0.10
BANDWIDTH, LAUNCH, ADDITION = "copy", "launch", "addition"


class SweepPoint(NamedTuple):
    """One point of the arithmetic-intensity sweep.

    Attributes:
        k: Multiplications for each float32 that is read and written.
        seconds: Time for the whole tensor.
        flops_per_s: Rate of the multiplications: one FLOP each, half of what multiply-adds reach.
        bytes_per_s: Rate of reading and writing together.
    """

    k: int
    seconds: float
    flops_per_s: float
    bytes_per_s: float


@frozen_dataclass
class Calibration:
    """Measured rates of one device.

    Attributes:
        device: Name as the driver gives it.
        measured_on: Date, as in 2026-01-31.
        flops: FLOP/s of large gemms by operand type (fp64, fp32, tf32, bf16, fp16, fp8, int8); types that the device
            or torch does not support are left out.
        bandwidth_bytes_per_s: Bandwidth of a large copy, reading and writing together; None if not measured.
        launch_s: CPU time for each of many tiny ops, launched one after the other; None if not measured.
        sweep: Points of growing arithmetic intensity.
        spread: By operand type, or BANDWIDTH, LAUNCH or ADDITION: how far the last rounds of measuring lay apart, the
            largest less the smallest, as a share of their median. Empty in files of earlier versions.
        addition_s: Time of each of many additions of integers in Python; None if not measured.
        is_fused: Whether the multiplications of the sweep stayed in registers. Without a C compiler those of a CPU are
            ops of their own, on blocks that stay in the cache.
    """

    device: str
    measured_on: str
    flops: Mapping[str, float]
    bandwidth_bytes_per_s: float | None
    launch_s: float | None
    sweep: tuple[SweepPoint, ...] = ()
    spread: Mapping[str, float] = field(default_factory=dict)
    addition_s: float | None = None
    is_fused: bool = True

    @property
    def unstable(self) -> tuple[str, ...]:
        """What varied by more than MAX_SPREAD."""
        return tuple(name for name, share in self.spread.items() if share > MAX_SPREAD)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no rate that an analysis could use."""
        return not self.flops and self.bandwidth_bytes_per_s is None and self.launch_s is None

    def without_unstable(self) -> Calibration:
        """The calibration without what varied by more than MAX_SPREAD."""
        dropped = self.unstable
        return replace(
            self,
            flops={dtype: rate for dtype, rate in self.flops.items() if dtype not in dropped},
            bandwidth_bytes_per_s=None if BANDWIDTH in dropped else self.bandwidth_bytes_per_s,
            launch_s=None if LAUNCH in dropped else self.launch_s,
            addition_s=None if ADDITION in dropped else self.addition_s,
            spread={name: share for name, share in self.spread.items() if name not in dropped},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as JSON stores it."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "measured_on": self.measured_on,
            "flops": dict(self.flops),
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "launch_s": self.launch_s,
            "addition_s": self.addition_s,
            "is_fused": self.is_fused,
            "sweep": [point._asdict() for point in self.sweep],
            "spread": dict(self.spread),
        }


def calibration_folder() -> Path:
    """Return the folder of calibrations: the one that PERFDOCTOR_CALIBRATION_DIR names, else the user's data folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return Path(folder)
    from platformdirs import user_data_path  # takes a few ms to import and is needed here only

    return user_data_path("perfdoctor") / "calibration"


def calibration_path(device: str) -> Path:
    """Return the file of a device, by its name."""
    return calibration_folder() / (re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:100] + ".json")


def store_calibration(calibration: Calibration) -> Path:
    """Write the calibration, in place of an earlier one of the same device, and return the file.

    Raises:
        InputError: the folder cannot be written.
    """
    path = calibration_path(calibration.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(calibration.to_dict(), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror}); name another folder in {FOLDER_VARIABLE}"
        ) from None
    return path


def find_calibration(device: str | None) -> Calibration | None:
    """Return the stored calibration of a device of that name; None if there is none that can be read."""
    if not device:
        return None
    try:
        calibration = _parse_calibration(json.loads(calibration_path(device).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return calibration if calibration.device.lower() == device.lower() else None


def _parse_calibration(stored: Any) -> Calibration:
    """Return the calibration that `to_dict` gave; raises KeyError, TypeError or ValueError for anything else."""
    if not isinstance(stored, dict) or stored["schema"] != SCHEMA:
        raise ValueError
    return Calibration(
        device=str(stored["device"]),
        measured_on=str(stored["measured_on"]),
        flops=MappingProxyType({str(dtype): _parse_rate(value) for dtype, value in stored["flops"].items()}),
        bandwidth_bytes_per_s=None
        if stored["bandwidth_bytes_per_s"] is None
        else _parse_rate(stored["bandwidth_bytes_per_s"]),
        launch_s=None if stored["launch_s"] is None else _parse_rate(stored["launch_s"]),
        addition_s=None if stored.get("addition_s") is None else _parse_rate(stored["addition_s"]),
        is_fused=bool(stored.get("is_fused", True)),
        sweep=tuple(SweepPoint(**point) for point in stored["sweep"]),
        spread=MappingProxyType({str(name): float(share) for name, share in stored.get("spread", {}).items()}),
    )


def _parse_rate(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError
    return float(value)


def apply_calibration(device: Device | None, calibration: Calibration, capability: tuple[int, int] | None) -> Device:
    """Return the device with measured rates.

    Peaks stay those of the table; a device that is not in the table has none.
    """
    if device is None:
        vendor = vendor_of(calibration.device)
        device = Device(
            name=calibration.device,
            vendor=vendor,
            compute_capability=capability if vendor == "nvidia" else None,
            gfx_arch=None,
            sm_count=None,
            peaks_flops=MappingProxyType({}),
            memory_bandwidth_bytes_per_s=None,
            memory_bytes=None,
            link_bytes_per_s=None,
            pcie_bytes_per_s=None,
            achievable_gemm_fraction=None,
            achievable_bandwidth_fraction=None,
            checked="measured",
            source="perfdoctor calibrate",
        )
    return replace(
        device,
        measured_flops=MappingProxyType({_peak_type(device, dtype): rate for dtype, rate in calibration.flops.items()}),
        measured_bandwidth_bytes_per_s=calibration.bandwidth_bytes_per_s,
        measured_on=calibration.measured_on,
    )


def _peak_type(device: Device, dtype: str) -> str:
    """Return the key of `peaks_flops` for the unit on which a library runs a gemm of that type."""
    if dtype == "fp64" and "fp64_matrix" in device.peaks_flops:
        return "fp64_matrix"
    if dtype == "fp32" and device.vendor == "amd" and "fp32_matrix" in device.peaks_flops:
        return "fp32_matrix"
    return dtype
