"""SavedBytes: how much less memory a program takes after a fix."""

from __future__ import annotations

from typing import Literal

from perfdoctor.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class SavedBytes:
    """How much lower the peak is, by a new sum over the whole recording; of a growth, what the run would not have kept.

    Attributes:
        low, expected, high: After all fixes of memory above it in the report: at least, as expected, at most.
        alone: As expected, with no other fix.
        of: Which peak: of what is allocated, or of what the allocator reserves of the device; "run" is what the program
            holds at the end of its run.
    """

    low: int
    expected: int
    high: int
    alone: int
    of: Literal["allocated", "reserved", "run"] = "allocated"
