"""Device models by name: peaks, bandwidths, and whether there are Tensor Cores at all.

The table is `data/devices.csv`, and what users add to it (see `device_table`); each row says where its numbers come
from and how they were checked. A device that is not in the table has no peaks: the numbers of a similar part would make
every roofline wrong without anyone noticing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Literal, NamedTuple

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.device_table import NamedRow, Row, read_table

Vendor = Literal["nvidia", "amd"]

_TERA = 1e12
_GIGA = 1e9
_GIB = 1 << 30
_DTYPES = ("fp64", "fp64_matrix", "fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8")

# Patterns as texts: only those that are used are compiled; compiling all of them takes 2 ms.

# Suffixes of a model's name that make it another part: "RTX 3090 Ti", "A100-SXM4-40GB MIG 1g.5gb", "H200 NVL".
_OTHER_PART = r"(?<![a-z0-9])(?:ti|super|laptop|mobile|max-q|embedded|mig|nvl|pcie|dd?|v2|sff|gre)(?![a-z0-9])"

_AMD_NAME = r"\b(?:amd|radeon|instinct)\b|\bgfx\d|\bmi\d{2,3}[ax]?\b"
_NVIDIA_NAME = r"\b(?:nvidia|tesla|geforce|quadro|titan|rtx|gtx)\b"
_AMD_WITH_MATRIX_CORES = r"\bmi(?:[1-4]\d\d)[ax]?|\bgfx(?:908|90a|94\d|95\d|11\d\d|12\d\d)|\brx ?[79]\d{3}|\bw7\d{3}"
_AMD_WITHOUT_MATRIX_CORES = (
    r"\bmi(?:6|8|25|50|60)\b|\bgfx(?:8\d\d|90[06]|10\d\d)|\brx ?(?:vega|[456]\d{2,3})|\bvega\b|radeon vii|\bw6\d{3}"
)
# Turing chips TU116 and TU117 report compute capability 7.5 but have no Tensor Cores.
_TURING_WITHOUT_TENSOR_CORES = r"\bgtx 16\d\d|\bmx(?:4|5)50\b|\bt(?:400|500|550|600|1000|1200)\b"
_NVIDIA_BEFORE_VOLTA = r"\bgtx\b|\b(?:gp100|p100|p40|p4|k\d0m?|k80|m\d0|m60)\b|quadro [pmk]\d|\bmx\d{3}\b|titan x"
_NVIDIA_WITH_TENSOR_CORES = r"\brtx\b|titan v\b|\b(?:v100|t4|a\d{1,3}[a-z]?|l\d{1,2}s?|h\d{2,3}|b\d{3}|g[hb]\d{2,3})\b"


@frozen_dataclass
class Device:
    """One device model. Unknown numbers are None, unknown peaks are not in the mapping.

    Attributes:
        name: Name for people.
        vendor: `nvidia` or `amd`.
        compute_capability: (major, minor) of an NVIDIA device; None for AMD, whose 9.x has nothing to do with sm_90.
        gfx_arch: Architecture of an AMD device, such as `gfx942`; None for NVIDIA.
        sm_count: Streaming multiprocessors or compute units.
        peaks_flops: Peak in FLOP/s without sparsity, by type: fp64 and fp32 on vector units; fp64_matrix, fp32_matrix,
            tf32, fp16, bf16, fp8 on matrix units.
        memory_bandwidth_bytes_per_s: Peak of the device memory.
        memory_bytes: Nominal size of the device memory.
        link_bytes_per_s: GPU-to-GPU links, both directions together; 0 where there are none.
        pcie_bytes_per_s: PCIe, both directions together.
        achievable_gemm_fraction: Share of the matrix peak that large gemms reach in practice.
        achievable_bandwidth_fraction: Share of the bandwidth peak that large copies reach in practice.
        checked: How the row was checked; `recall` means that it was not.
        source: Where the numbers come from.
        measured_flops: FLOP/s that `perfdoctor calibrate` measured on such a device, by type as in `peaks_flops`.
        measured_bandwidth_bytes_per_s: Bandwidth of large copies that it measured; None if it did not.
        measured_on: Date of the measurement; None if there is none.
    """

    name: str
    vendor: Vendor | None
    compute_capability: tuple[int, int] | None
    gfx_arch: str | None
    sm_count: int | None
    peaks_flops: Mapping[str, float] = field(hash=False)
    memory_bandwidth_bytes_per_s: float | None
    memory_bytes: int | None
    link_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    achievable_gemm_fraction: float | None
    achievable_bandwidth_fraction: float | None
    checked: str
    source: str
    measured_flops: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    measured_bandwidth_bytes_per_s: float | None = None
    measured_on: str | None = None

    def peak_flops(self, dtype: str) -> float | None:
        """Return the peak in FLOP/s of a type of `peaks_flops`, or None if it is unknown or the hardware has none."""
        return self.peaks_flops.get(dtype)

    def matrix_peak_type(self, operand: str) -> str:
        """Return the key of `peaks_flops` for an operand type on Tensor Cores (matrix cores)."""
        if operand == "fp64":
            return "fp64_matrix"
        if operand == "fp32":
            return "tf32" if self.vendor == "nvidia" else "fp32_matrix"
        return operand

    def matrix_peak_flops(self, operand: str) -> float | None:
        """Return the dense peak of Tensor Cores (matrix cores) for an operand type, or None if it is unknown."""
        return self.peaks_flops.get(self.matrix_peak_type(operand))

    def vector_peak_flops(self, operand: str) -> float | None:
        """Return an upper bound of the FLOP/s of CUDA cores (vector units) for an operand type, or None if unknown.

        Half precision runs at up to twice the float32 rate because it is packed: on A100 at four times for fp16 (A100
        whitepaper), on CDNA 3, whose float32 is packed as well, at the same rate (CDNA 3 ISA guide). int8 has
        four-element dot products.
        """
        if operand in ("fp64", "fp32", "tf32"):
            return self.peaks_flops.get("fp64" if operand == "fp64" else "fp32")
        fp32_peak = self.peaks_flops.get("fp32")
        return None if fp32_peak is None else fp32_peak * _vector_rate_over_fp32(self, operand)

    def attainable_flops(self, peak_type: str) -> float | None:
        """Return the FLOP/s that large gemms reach in practice: as measured by calibrate, else a share of the peak.

        Args:
            peak_type: Type as in `peaks_flops`.
        """
        if peak_type in self.measured_flops:
            return self.measured_flops[peak_type]
        peak = self.peaks_flops.get(peak_type)
        return None if peak is None else peak * (self.achievable_gemm_fraction or 1.0)

    @property
    def attainable_bandwidth_bytes_per_s(self) -> float | None:
        """Bandwidth that large copies reach in practice: as measured by calibrate, else a share of the peak."""
        if self.measured_bandwidth_bytes_per_s is not None:
            return self.measured_bandwidth_bytes_per_s
        peak = self.memory_bandwidth_bytes_per_s
        return None if peak is None else peak * (self.achievable_bandwidth_fraction or 1.0)


def _vector_rate_over_fp32(device: Device, operand: str) -> float:
    if operand == "int8":
        return 4.0
    if device.compute_capability == (8, 0) and operand == "fp16":
        return 4.0
    return 1.0 if device.gfx_arch in ("gfx942", "gfx950") else 2.0


class PrecisionAdvice(NamedTuple):
    """Which precision to choose for float32 gemms on a device.

    Attributes:
        precision: `tf32`, `bf16 autocast` or `fp16 autocast`.
        peak_ratio: Peak of that precision over the float32 vector peak: a bound of the speedup. None if unknown.
    """

    precision: Literal["tf32", "bf16 autocast", "fp16 autocast"]
    peak_ratio: float | None


def vendor_of(name: str | None) -> Vendor | None:
    """Return the vendor of a device by its name, or None if the name does not say."""
    text = (name or "").lower()
    if re.search(_AMD_NAME, text):
        return "amd"
    if re.search(_NVIDIA_NAME, text):
        return "nvidia"
    device = _find_in_table(text)
    return device.vendor if device is not None else None


def find_device(
    name: str | None,
    capability: tuple[int, int] | None = None,
    vendor: str | None = None,
    memory_bytes: int | None = None,
    sm_count: int | None = None,
) -> Device | None:
    """Return the device of that name.

    The longest model name that occurs in `name` as whole words wins. Capability and vendor can only rule a device out:
    nothing is looked up by them, because one compute capability covers parts whose peaks differ by ten times.

    Args:
        name: Name as the driver gives it, such as `NVIDIA A100-SXM4-80GB`; None or empty is unknown.
        capability: Compute capability as the trace gives it. Compared for NVIDIA only: AMD's 9.x is not sm_90.
        vendor: `nvidia` or `amd`, if known.
        memory_bytes: Size of the device memory, if known.
        sm_count: Multiprocessors or compute units, if known. Both decide between parts of one name, such as the GeForce
            RTX 3080 with 10 and 12 GB; where neither is known the first of them in the table is meant.

    Returns:
        The device; None if the name is not in the table, or if capability or vendor contradict it.
    """
    device = _find_in_table((name or "").lower(), memory_bytes, sm_count)
    if device is None or (vendor is not None and vendor.lower() != device.vendor):
        return None
    if (
        capability is not None
        and device.compute_capability is not None
        and tuple(capability) != device.compute_capability
    ):
        return None
    return device


def has_tensor_cores(
    name: str | None, capability: tuple[int, int] | None = None, vendor: str | None = None
) -> bool | None:
    """Return whether the device has Tensor Cores, or matrix cores on AMD; None if that cannot be known.

    Args:
        name: Name as the driver gives it; None or empty is unknown.
        capability: Compute capability as the trace gives it.
        vendor: `nvidia` or `amd`; taken from the name if None.

    Returns:
        True, False, or None. Turing without Tensor Cores (GTX 16, MX450, T400 to T1200) is recognised by name, because
        its compute capability is that of T4.
    """
    text = (name or "").lower()
    vendor = vendor.lower() if vendor else vendor_of(name)
    if vendor == "amd":
        return _amd_has_matrix_cores(text)
    if vendor == "nvidia":
        return _nvidia_has_tensor_cores(text, capability)
    if capability is None or capability[0] >= 9 or tuple(capability) == (7, 5):
        return None  # ROCm reports majors from 9 on, with and without matrix cores; 7.5 is T4 and GTX 1650 alike.
    return tuple(capability) >= (7, 0)


def _amd_has_matrix_cores(text: str) -> bool | None:
    if re.search(_AMD_WITH_MATRIX_CORES, text):
        return True
    return False if re.search(_AMD_WITHOUT_MATRIX_CORES, text) else None


def _nvidia_has_tensor_cores(text: str, capability: tuple[int, int] | None) -> bool | None:
    if capability is not None and tuple(capability) != (7, 5):
        return tuple(capability) >= (7, 0)
    if re.search(_TURING_WITHOUT_TENSOR_CORES, text) or re.search(_NVIDIA_BEFORE_VOLTA, text):
        return False
    return True if re.search(_NVIDIA_WITH_TENSOR_CORES, text) else None


def advise_precision(
    device: Device | None, capability: tuple[int, int] | None = None, vendor: str | None = None
) -> PrecisionAdvice | None:
    """Return which precision to choose where float32 gemms run on CUDA cores.

    Volta and Turing have neither TF32 nor bf16. Where the peak of TF32 is not above that of float32 (GeForce from
    Ampere on), TF32 gains nothing and bf16 does. Data-centre parts gain most per changed line by TF32.

    Args:
        device: The device, or None if it is not in the table.
        capability: Compute capability of an NVIDIA device that is not in the table.
        vendor: Vendor of a device that is not in the table. Without it the capability does not count: AMD numbers its
            architectures differently.

    Returns:
        The advice, or None for a device older than Volta or of unknown kind. GTX 16 and similar parts have the
        compute capability of T4: ask `has_tensor_cores` first.
    """
    if device is None:
        return _advise_by_capability(capability) if vendor == "nvidia" else None
    capability = device.compute_capability
    if capability is not None and capability < (8, 0):
        return PrecisionAdvice("fp16 autocast", _peak_over_fp32(device, "fp16")) if capability >= (7, 0) else None
    tf32 = _peak_over_fp32(device, "tf32")
    if device.vendor == "nvidia" and tf32 is not None and tf32 > 1.0:
        return PrecisionAdvice("tf32", tf32)
    return PrecisionAdvice("bf16 autocast", _peak_over_fp32(device, "bf16"))


def _advise_by_capability(capability: tuple[int, int] | None) -> PrecisionAdvice | None:
    if capability is None or tuple(capability) < (7, 0):
        return None
    if capability[0] == 7:
        return PrecisionAdvice("fp16 autocast", None)
    if tuple(capability) in ((8, 0), (9, 0)) or capability[0] == 10:
        return PrecisionAdvice("tf32", None)
    return PrecisionAdvice("bf16 autocast", None)


def _peak_over_fp32(device: Device, dtype: str) -> float | None:
    peak, fp32_peak = device.peak_flops(dtype), device.peak_flops("fp32")
    if not device.peaks_flops:  # not in the table, but measured
        peak, fp32_peak = device.measured_flops.get(dtype), device.measured_flops.get("fp32")
    return None if peak is None or fp32_peak is None else peak / fp32_peak


def all_devices() -> tuple[Device, ...]:
    """Return every device of the table."""
    rows = {id(named.row): named.row for named in read_table()}
    return tuple(map(_parse_row, rows.values()))


def _find_in_table(text: str, memory_bytes: int | None = None, sm_count: int | None = None) -> Device | None:
    table = read_table()
    for match, _ in table:
        start = text.find(match)
        if start < 0:
            continue
        before, after = text[start - 1 : start], text[start + len(match) :]
        if before.isalnum() or after[:1].isalnum():
            continue
        return None if re.search(_OTHER_PART, after) else _choose_part(table, match, memory_bytes, sm_count)
    return None


def _choose_part(
    table: tuple[NamedRow, ...], match: str, memory_bytes: int | None, sm_count: int | None
) -> Device | None:
    """The device of that match; of several the first that has so many multiprocessors and such a memory, or None."""
    parts = [_parse_row(named.row) for named in table if named.match == match]
    if len(parts) > 1 and sm_count is not None:
        parts = [part for part in parts if part.sm_count == sm_count]
    if len(parts) > 1 and memory_bytes is not None:
        # The driver keeps some for itself: up to 9 % on a T4 with ECC.
        parts = [part for part in parts if part.memory_bytes and 0.88 < memory_bytes / part.memory_bytes < 1.05]
    return parts[0] if parts else None


def similar_names(name: str, max_count: int = 3) -> list[str]:
    """Return the names in the table that are most like one that is not, the nearest first; empty where none is near."""
    import difflib  # takes 3 ms, and only a wrong name asks for it

    # By what models are called: "h100" is nearer to "H1000" than "NVIDIA H100 SXM5" is.
    text = re.sub(r"\b(?:nvidia|amd|geforce|instinct|tesla|radeon)\b", "", name.lower()).strip()
    names = {match: (row["match"] or row["name"]).split("|")[0] for match, row in read_table()}
    longer = sorted(match for match in names if text and match.startswith(text))
    close = difflib.get_close_matches(text, names, n=3 * max_count, cutoff=0.6)
    return list(dict.fromkeys(names[match] for match in (*longer, *close)))[:max_count]


def _parse_row(row: Row) -> Device:
    def number(column: str, unit: float = 1.0) -> float | None:
        return float(row[column]) * unit if row[column] else None

    def whole(column: str, unit: int = 1) -> int | None:
        return round(float(row[column]) * unit) if row[column] else None

    major, _, minor = row["compute_capability"].partition(".")
    peaks = {dtype: number(f"{dtype}_tflops", _TERA) for dtype in _DTYPES}
    return Device(
        name=row["name"],
        vendor="amd" if row["vendor"] == "amd" else "nvidia",
        compute_capability=(int(major), int(minor)) if major else None,
        gfx_arch=row["gfx_arch"] or None,
        sm_count=whole("sm_count"),
        peaks_flops=MappingProxyType({dtype: peak for dtype, peak in peaks.items() if peak is not None}),
        memory_bandwidth_bytes_per_s=number("memory_bandwidth_gb_per_s", _GIGA),
        memory_bytes=whole("memory_gib", _GIB),
        link_bytes_per_s=number("link_gb_per_s", _GIGA),
        pcie_bytes_per_s=number("pcie_gb_per_s", _GIGA),
        achievable_gemm_fraction=number("achievable_gemm_fraction"),
        achievable_bandwidth_fraction=number("achievable_bandwidth_fraction"),
        checked=row["checked"],
        source=row["source"],
    )
