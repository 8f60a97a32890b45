"""Times as viewers have them, who read microseconds as float64.

That is exact for times from the start of a recording. Of those since the epoch float64 keeps a quarter of a
microsecond, so what follows without a gap in the file may overlap in a viewer.
"""

from __future__ import annotations

import numpy as np

from perfdoctor.trace.arrays import Int64Array


def seen_ns(time_ns: Int64Array) -> Int64Array:
    """The nanoseconds that Perfetto makes of times (release 52, by experiment); they stay in order.

    It multiplies the float64 of the microseconds by 1000 and rounds, and keeps whole microseconds exactly.
    """
    whole, rest = np.divmod(time_ns, 1000)
    us = whole + rest / 1000
    rounded = np.floor(us)
    return np.where(us == rounded, rounded.astype(np.int64) * 1000, np.floor(us * 1000 + 0.5).astype(np.int64))
