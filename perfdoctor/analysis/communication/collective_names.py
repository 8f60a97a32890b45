"""What collectives are called: in the ranges that torch opens around them, and by kind, however libraries spell them.

What is a collective among kernels and ops their category says (`gpu.classify_kernel`, `gpu.classify_op`).
"""

from __future__ import annotations

import re

BY_CPU = r"^(gloo|mpi|ucc):"
"""The range around a collective that a thread of the CPU runs: it lasts as long as that."""
CALLED = r"^(nccl|rccl|xccl|gloo|mpi|ucc):"
"""The range around any collective; of those that a GPU runs it is the call, on the calling thread."""

KINDS = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "barrier",
    "send_recv",
    "reduce",
    "gather",
    "scatter",
    "other",
)
OTHER_KIND = KINDS.index("other")
# How libraries spell them; the first that fits counts. deep_ep's kernels for experts are the halves of an all-to-all.
_SPELLINGS = (
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_reduce", r"all_?reduce|cross_device_reduce|quick_?reduce|lamport"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?(to|2)_?all|(ep|internode|intranode)\b.*(dispatch|combine)"),
    ("broadcast", r"broadcast|bcast"),
    ("barrier", r"barrier"),
    ("send_recv", r"send|recv"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)


def kind_of(name: str) -> str:
    """Which of KINDS a kernel, range or recorded name means."""
    text = name.lower()
    return next((kind for kind, spelling in _SPELLINGS if re.search(spelling, text)), "other")
