"""Which share of its roof a kernel reaches: quartiles of what comparable kernels of recorded programs reached.

The roof of a kernel is the longest of FLOPs over the peak of its unit, bytes over the peak bandwidth, and the 2 us that
any kernel takes; its efficiency is that time over its duration. A roofline alone promises too much: kernels reach a
tenth of a short roof, and three quarters of a long one. `data/efficiencies.csv` has the quartiles by family, type, size
and generation; `python -m benchmarks.kernels efficiencies` makes it from recordings and checks it on those that it left
out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from perfdoctor.data_rows import read_rows
from perfdoctor.gpu.generations import generation_of
from perfdoctor.trace.arrays import FloatArray, Int64Array

KernelFamily: TypeAlias = Literal["gemm", "convolution", "attention", "memory"]

SIZES = ("tiny", "small", "medium", "large")
SIZE_LIMITS_NS = (3_000, 10_000, 50_000)
"""Upper limits of the times at the roof of all sizes but the last."""
ANY = "any"
"""Stands for any type, size or generation in the table."""

# No recording of an older device is in the table.
_OLDEST_IN_TABLE = (7, 0)
_MIN_LOW = 0.001  # a quartile of 0.000 in the table is one below its last digit


class Efficiency(NamedTuple):
    """Quartiles of an efficiency, 0 to 1.

    Attributes:
        low: What three quarters of comparable kernels exceed.
        expected: The median.
        high: What a quarter of them exceed.
    """

    low: float
    expected: float
    high: float


class Cell(NamedTuple):
    """What kernels have in common that are compared with each other.

    Attributes:
        family: gemm, convolution, attention, or memory for what only moves data.
        dtype: The unit: a key of `Device.peaks_flops` such as "fp32" (CUDA cores) or "tf32"; ANY.
        size: One of SIZES, by the time at the roof; ANY.
        generation: NVIDIA's name of it, such as "Ampere", or AMD's architecture, such as "gfx942"; ANY.
    """

    family: str
    dtype: str = ANY
    size: str = ANY
    generation: str = ANY

    def widen(self) -> tuple[Cell, ...]:
        """The cell and those that stand in for it where it is empty, the nearest first.

        Size says more of an efficiency than type or generation do, so it is given up last.
        """
        return (
            self,
            self._replace(generation=ANY),
            self._replace(dtype=ANY, generation=ANY),
            self._replace(size=ANY, generation=ANY),
            self._replace(dtype=ANY, size=ANY, generation=ANY),
        )


def find_efficiency(cell: Cell, table: Mapping[Cell, Efficiency] | None = None) -> Efficiency | None:
    """The efficiency of comparable kernels: of the cell, else of the nearest wider one; None for an unknown family.

    Without a table it is the one that ships with the package.
    """
    table = _read_table() if table is None else table
    return next((table[wider] for wider in cell.widen() if wider in table), None)


def name_generation(capability: tuple[int, int] | None, gfx_arch: str | None = None) -> str:
    """The generation of a device as the table of efficiencies names it: AMD's by the architecture; else ANY."""
    if gfx_arch:
        return gfx_arch
    if capability is None or capability < _OLDEST_IN_TABLE:
        return ANY
    return generation_of(capability, None) or ANY


class SampleCount(NamedTuple):
    """How many kinds of recorded kernels a family's efficiencies rest on.

    Attributes:
        kinds: Kinds of kernels, each of one recording.
        programs: Programs that they are of.
        of_generation: Kinds recorded on the generation, where the table has enough of them to tell it apart; else 0.
    """

    kinds: int
    programs: int
    of_generation: int


def count_samples(family: str, dtype: str, generation: str) -> SampleCount:
    """What the efficiencies of a family and type rest on; of all types where the table has too few of this one."""
    rows = [row for row in _read_rows() if row["family"] == family]
    for name in (dtype, ANY):
        of_type = [row for row in rows if row["dtype"] == name]
        whole = [row for row in of_type if row["size"] == row["generation"] == ANY]
        if whole:
            special = sum(int(row["kinds"]) for row in of_type if row["generation"] == generation != ANY)
            return SampleCount(int(whole[0]["kinds"]), int(whole[0]["programs"]), special)
    return SampleCount(0, 0, 0)


def size_classes(roof_ns: FloatArray) -> Int64Array:
    """For each time at the roof the index of its size in SIZES; NaN counts as the largest."""
    return np.searchsorted(np.array(SIZE_LIMITS_NS, np.float64), roof_ns, side="right").astype(np.int64)


def efficiencies_of(family: str, dtype: str, roof_ns: FloatArray, generation: str) -> FloatArray:
    """The efficiencies of comparable kernels, (n, 3): low, expected and high; NaN where the table knows none.

    `dtype` is as in `Cell`, and `roof_ns` the time of each kernel at the roof.
    """
    unknown = Efficiency(np.nan, np.nan, np.nan)
    by_size = [find_efficiency(Cell(family, dtype, size, generation)) or unknown for size in SIZES]
    result: FloatArray = np.array(by_size, np.float64)[size_classes(roof_ns)]
    return result


@functools.cache
def _read_table() -> Mapping[Cell, Efficiency]:
    """The table, read on first use."""
    return {
        Cell(row["family"], row["dtype"], row["size"], row["generation"]): Efficiency(
            *(max(float(row[quartile]), _MIN_LOW) for quartile in Efficiency._fields)
        )
        for row in _read_rows()
    }


@functools.cache
def _read_rows() -> tuple[Mapping[str, str], ...]:
    return tuple(read_rows("gpu/data/efficiencies.csv"))
