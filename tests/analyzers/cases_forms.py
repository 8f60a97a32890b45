"""Cases of PD212: forms that were measured beside what a line computes."""

from __future__ import annotations

from typing import Any

from cases_cpu_ops import Steps

from perfdoctor.testing import TraceBuilder

FRAME = "train.py(3): main"


def lookup(us: float = 500, name: str = "aten::index") -> TraceBuilder:
    """Two steps of 1000 us in which a line indexes a tensor, and adds."""
    return Steps().op(name, us, ("float", (400, 64)), ("long int", (900,))).op("aten::add", 100).build(FRAME)


def form(**changes: Any) -> dict[str, Any]:
    """One measured form of the line's index: 500 us a call, 100 us in the other form."""
    row = {
        "form": "index_select",
        "says": "index_select",
        "results": "equal",
        "lines": [{"file": "train.py", "line": 3, "function": "main", "ops": ["getitem"]}],
        "calls": 1,
        "ops": ["getitem"],
        "sizes": [[400, 64], [900]],
        "device": "cpu",
        "now_ns": 500_000,
        "form_ns": 100_000,
        "noise": 0.0,
        "difference": 0.0,
        "has_backward": False,
        "write": "x.index_select(0, rows)",
        "statement": None,
    }
    return row | changes


def measured(*rows: dict[str, Any]) -> dict[str, Any]:
    """The facts of a capture with some forms."""
    return {"forms": list(rows or (form(),))}
