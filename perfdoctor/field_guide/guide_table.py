"""All rows of the field guide, in the order of their numbers."""

from __future__ import annotations

from perfdoctor.field_guide import overhead_guide_rows, precision_guide_rows, training_guide_rows

ROWS = tuple(
    sorted((*precision_guide_rows.ROWS, *training_guide_rows.ROWS, *overhead_guide_rows.ROWS), key=lambda r: r.number)
)
