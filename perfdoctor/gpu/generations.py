"""Generations of devices by the architectures that kernels were built for, where nothing names the device.

The name of a kernel proves a lower limit: `ampere_sgemm_128x64_nn` runs on an RTX 4090, and `volta_sgemm_128x64_tn` on
a T4, but neither runs on an older device. Libraries have kernels of their own for each generation of data-centre parts,
so the newest architecture that occurs says between which generations the device is. The number of its multiprocessors
may leave one of them.
"""

from __future__ import annotations

from collections.abc import Iterable

# Checked on 40 recordings that name their device: of V100 and T4 (volta_ alone on both, turing_ and cutlass_75 on T4),
# A100, RTX 3060, A4000 and RTX 4090 (all sm80), H100 (sm90), B200 and B300 (sm100).
_NVIDIA_GENERATIONS = (
    ((12, 0), ("Blackwell",)),
    ((10, 0), ("Blackwell",)),
    ((9, 0), ("Hopper",)),
    ((8, 9), ("Ada",)),
    ((8, 0), ("Ampere", "Ada")),
    ((7, 5), ("Turing",)),
    ((7, 0), ("Volta", "Turing")),
    ((6, 0), ("Pascal",)),
)
_AMD_GENERATIONS = {
    "gfx906": "GCN 5",
    "gfx908": "CDNA",
    "gfx90a": "CDNA 2",
    "gfx940": "CDNA 3",
    "gfx941": "CDNA 3",
    "gfx942": "CDNA 3",
    "gfx950": "CDNA 4",
    "gfx1030": "RDNA 2",
    "gfx1100": "RDNA 3",
    "gfx1200": "RDNA 4",
    "gfx1201": "RDNA 4",
}
# Of Volta there are Tegra chips with up to 8 multiprocessors, and GV100 with 80. Of Turing the largest chip, TU102, has
# 72, and the largest without Tensor Cores, TU116, has 24 (techpowerup.com/gpu-specs).
_MAX_SMS_OF_VOLTA_TEGRA = 8
_MAX_SMS_OF_TURING = 72
_MAX_SMS_OF_TURING_WITHOUT_TENSOR_CORES = 24
# Generations whose devices that run PyTorch all have one compute capability.
_CAPABILITIES = {"Volta": (7, 0), "Turing": (7, 5), "Ada": (8, 9), "Hopper": (9, 0)}
_WITHOUT_TENSOR_CORES = ("Pascal", "GCN 5", "RDNA 2")
# What people call the devices of a generation, where that is another name.
_SERIES = {"CDNA": "MI100", "CDNA 2": "MI200-series", "CDNA 3": "MI300-series", "CDNA 4": "MI350-series"}


def possible_generations(architectures: Iterable[str], sm_count: int | None = None) -> tuple[str, ...]:
    """The generations that the device can belong to, by the architectures of its kernels.

    Oldest first; empty where the architectures, such as "sm80" or "gfx942", prove none or contradict each other.
    """
    generations = _generations_by_architecture(architectures)
    if generations == ("Volta", "Turing") and sm_count is not None and sm_count > _MAX_SMS_OF_VOLTA_TEGRA:
        return ("Volta",) if sm_count > _MAX_SMS_OF_TURING else ("Turing",)
    return generations


def describe_generations(generations: tuple[str, ...]) -> str:
    """What the device can be, such as "Volta or Turing GPU" or "MI300-series GPU"."""
    return f"{' or '.join(_SERIES.get(generation, generation) for generation in generations)} GPU"


def generation_of(capability: tuple[int, int] | None, gfx_arch: str | None) -> str | None:
    """The generation of a device of that compute capability, or of that architecture of AMD's; None if unknown."""
    if gfx_arch is not None:
        return _AMD_GENERATIONS.get(gfx_arch)
    if capability is None:
        return None
    # Where kernels of an architecture run on two generations, the older one is theirs.
    return next((names[0] for min_capability, names in _NVIDIA_GENERATIONS if capability >= min_capability), None)


def capability_of(generations: tuple[str, ...]) -> tuple[int, int] | None:
    """The one compute capability that devices of these generations have; None where there are several, or none."""
    return _CAPABILITIES.get(generations[0]) if len(generations) == 1 else None


def generations_have_tensor_cores(generations: tuple[str, ...], sm_count: int | None = None) -> bool | None:
    """Whether all devices of these generations have Tensor Cores (matrix cores), or none has; None if unknown.

    The number of multiprocessors tells a T4 from a GeForce GTX 16.
    """
    if not generations:
        return None
    if "Turing" in generations and (sm_count is None or sm_count <= _MAX_SMS_OF_TURING_WITHOUT_TENSOR_CORES):
        return None
    without = [generation in _WITHOUT_TENSOR_CORES for generation in generations]
    return False if all(without) else None if any(without) else True


def _generations_by_architecture(architectures: Iterable[str]) -> tuple[str, ...]:
    found = set(architectures)
    by_amd = {_AMD_GENERATIONS[arch] for arch in found if arch in _AMD_GENERATIONS}
    capabilities = [_parse_capability(arch) for arch in found if arch.startswith("sm")]
    if by_amd:
        return tuple(by_amd) if len(by_amd) == 1 and not capabilities else ()
    newest = max((capability for capability in capabilities if capability), default=None)
    if newest is None:
        return ()
    return next((names for min_capability, names in _NVIDIA_GENERATIONS if newest >= min_capability), ())


def _parse_capability(arch: str) -> tuple[int, int] | None:
    """Major and minor of an architecture such as "sm80" or "sm103"; None for any other text."""
    digits = arch[2:]
    return (int(digits[:-1]), int(digits[-1])) if len(digits) >= 2 and digits.isdecimal() else None
