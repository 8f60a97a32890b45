"""All rows of the field guide, in the order of their numbers."""

from __future__ import annotations

from perfdoctor.field_guide import overhead_guide_rows, precision_guide_rows, training_guide_rows

ROWS = tuple(
    sorted((*precision_guide_rows.ROWS, *training_guide_rows.ROWS, *overhead_guide_rows.ROWS), key=lambda r: r.number)
)

MERGED_RULES = {
    "PD504": (("PD304",), "what zero_grad(set_to_none=False) costs is the fills and sums that PD304 measures"),
    "PD508": (("PD101", "PD105", "PD112"), "a loader's setting is a fault where it costs time, which these measure"),
    "PD510": (("PD307",), "recompute is worth its time or not, by the memory that is free: one question, one rule"),
    "PD511": (("PD201",), "a flag is a fault where products run without Tensor Cores, which PD201 measures"),
}
"""Ids of the catalogue that have no rule of their own: the rules that say the same, and why."""
