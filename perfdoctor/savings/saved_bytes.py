"""SavedBytes: how much lower the peak of a device's memory is after a fix."""

from __future__ import annotations

from perfdoctor.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class SavedBytes:
    """How much lower the peak is, by a new sum over the whole recording.

    Attributes:
        low, expected, high: After all fixes of memory above it in the report: at least, as expected, at most.
        alone: As expected, with no other fix.
    """

    low: int
    expected: int
    high: int
    alone: int
