"""Generations of devices by the architectures that kernels were built for, where nothing names the device.

The name of a kernel proves a lower limit: `ampere_sgemm_128x64_nn` runs on an RTX 4090, and `volta_sgemm_128x64_tn` on
a T4, but neither runs on an older device. Libraries have kernels of their own for each generation of data-centre parts,
so the newest architecture that occurs says between which generations the device is.
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


def possible_generations(architectures: Iterable[str]) -> tuple[str, ...]:
    """The generations of which the device can be, by the architectures of its kernels.

    Args:
        architectures: As `KernelClass.arch` names them, such as "sm80" or "gfx942".

    Returns:
        The generations, oldest first; empty where the architectures prove none, or where they contradict each other.
    """
    found = set(architectures)
    by_amd = {_AMD_GENERATIONS[arch] for arch in found if arch in _AMD_GENERATIONS}
    capabilities = [_parse_capability(arch) for arch in found if arch.startswith("sm")]
    if by_amd:
        return tuple(by_amd) if len(by_amd) == 1 and not capabilities else ()
    newest = max((capability for capability in capabilities if capability), default=None)
    if newest is None:
        return ()
    return next((names for least, names in _NVIDIA_GENERATIONS if newest >= least), ())


def _parse_capability(arch: str) -> tuple[int, int] | None:
    """Major and minor of an architecture such as "sm80" or "sm103"; None for any other text."""
    digits = arch[2:]
    return (int(digits[:-1]), int(digits[-1])) if len(digits) >= 2 and digits.isdecimal() else None
