"""What well-made kernels of a kind reach of their roof: the yardstick for a kernel that is far below its own.

`efficiencies` has the quartiles of whatever was recorded, slow kernels among them, for what a fix may be expected to
give. This table says what is reached by kernels that have no fault, with a source for each row: published measurements
and the recorded kernels that go well. Products and convolutions, of which many were recorded, stay with the quartiles.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from perfdoctor.data_rows import read_rows
from perfdoctor.gpu.roofline.efficiencies import ANY, Efficiency


def find_reach(family: str, variant: str = ANY, generation: str = ANY) -> Efficiency | None:
    """What comparable kernels reach of their roof, 0 to 1; None for a family that the table does not have.

    Args:
        family: attention, norm, softmax, elementwise, copy, reduction, indexing, or gemm where memory bounds it.
        variant: What tells kernels of the family apart, such as "causal" or "short rows".
        generation: As in `Cell`.
    """
    table = _read_table()
    keys = ((family, variant, generation), (family, variant, ANY), (family, ANY, generation), (family, ANY, ANY))
    return next((table[key] for key in keys if key in table), None)


@functools.cache
def _read_table() -> Mapping[tuple[str, str, str], Efficiency]:
    """The table, read on first use."""
    return {
        (row["family"], row["variant"], row["generation"]): Efficiency(
            *(float(row[quartile]) for quartile in Efficiency._fields)
        )
        for row in read_rows("gpu/data/comparable_kernels.csv")
    }
