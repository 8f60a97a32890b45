"""The devices of an Nsight Systems export: which GPU a CUDA device of a process is, and what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.nsight.export_tables import ExportTables
from perfdoctor.trace.tables.model import DeviceProperties

# TARGET_INFO_CUDA_GPU is what versions before the middle of 2021 wrote.
_GPU_TABLES = ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
_GPU_COLUMNS: Mapping[str, Sequence[str]] = {
    "id": ("id", "deviceId"),
    "cuda": ("cuDevice", "deviceId"),
    "name": ("name",),
    "major": ("computeMajor", "computeCapabilityMajor"),
    "minor": ("computeMinor", "computeCapabilityMinor"),
    "sms": ("smCount", "numMultiprocessors"),
    "memory": ("totalMemory", "globalMemorySize"),
}
_CUDA_COLUMNS: Mapping[str, Sequence[str]] = {
    "gpu": ("gpuId",),
    "cuda": ("cudaId",),
    "pid": ("pid",),
    "sms": ("numMultiprocessors",),
}


def physical_devices(tables: ExportTables) -> dict[tuple[int, int], int]:
    """The GPU of each process's CUDA device: with CUDA_VISIBLE_DEVICES every process calls its own device 0."""
    return {
        (row["pid"], row["cuda"]): row["gpu"]
        for row in tables.read_records("TARGET_INFO_CUDA_DEVICE", _CUDA_COLUMNS)
        if all(isinstance(row[key], int) for key in ("pid", "cuda", "gpu"))
    }


def device_of(tables: ExportTables, pid: Int64Array, device: Int64Array) -> DeviceProperties:
    """The device that most GPU items ran on, by process and CUDA device; else the first that the file lists."""
    gpus = [row for table in _GPU_TABLES for row in tables.read_records(table, _GPU_COLUMNS)]
    if not gpus:
        return DeviceProperties()
    chosen = gpus[0]
    if len(device):
        pairs, count = np.unique(np.column_stack((pid, device)), axis=0, return_counts=True)
        process, cuda = pairs[count.argmax()].tolist()
        physical = physical_devices(tables).get((process, cuda))
        chosen = (
            _find_gpu(gpus, "id", physical) or _find_gpu(gpus, "cuda", cuda) or _find_gpu(gpus, "id", cuda) or chosen
        )
    major = _positive_or_none(chosen["major"])
    return DeviceProperties(
        name=str(chosen["name"]).strip() or None if chosen["name"] else None,
        capability=(major, _positive_or_none(chosen["minor"]) or 0) if major else None,
        sm_count=_positive_or_none(chosen["sms"]),
        memory_bytes=_positive_or_none(chosen["memory"]),
    )


def _find_gpu(gpus: Sequence[dict[str, Any]], key: str, value: int | None) -> dict[str, Any] | None:
    return next((gpu for gpu in gpus if value is not None and gpu[key] == value), None)


def _positive_or_none(value: object) -> int | None:
    """A positive number, else None: old versions write 0 where they do not know."""
    return value if isinstance(value, int) and value > 0 else None
