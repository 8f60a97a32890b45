"""The clock of a rank on that of the first one: an offset, and a drift where the recording is long enough to show it.

The clocks of hosts run at different rates: two quartz oscillators differ by some 20 us a second, an hour's worth of
which a time service takes back at up to 500. Over a window of 30 s that is 0.6 ms, as much as a rank has to be late to
be called slow. So the differences between the ends of shared collectives are fitted by a line::

    difference  |            .  :      of the clocks of two ranks, at the ends of the
                |      :  .  '         collectives that both took part in
                |  .  '
                +-------------- time
"""

from __future__ import annotations

import numpy as np

from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.quantiles import quantiles

# The line is fitted to the medians of this many stretches of time: outliers do not move a median.
_STRETCHES = 16
_MIN_ENDS = 4 * _STRETCHES
# A drift that makes less than this is not fitted: ends of one host differ by as much.
MIN_DRIFT_EFFECT_NS = 100_000
# No stretch may be off the line by more than this share of what the drift makes: a clock that was set, or ends that
# scatter, are no drift.
_MAX_RESIDUAL_SHARE = 1 / 6
# What a time service corrects at most (the kernel's adjtimex); beyond it, the numbers are of another run.
_MAX_DRIFT = 500e-6


@frozen_dataclass
class RankClock:
    """How the clock of a rank is put on that of the first one.

    Attributes:
        offset_ns: What to add to its times, at `anchor_ns`.
        drift: By how much its seconds are shorter than those of the first rank: what to add for each ns behind
            `anchor_ns`.
        anchor_ns: The instant of its clock at which `offset_ns` holds; without a drift it holds always.
    """

    offset_ns: int = 0
    drift: float = 0.0
    anchor_ns: int = 0

    def to_common(self, own_ns: Int64Array) -> Int64Array:
        """Times of the rank on the clock of the first one."""
        if not self.drift:
            return own_ns + self.offset_ns
        shift_ns: Int64Array = np.rint((own_ns - self.anchor_ns) * self.drift).astype(np.int64)
        return own_ns + self.offset_ns + shift_ns

    def to_own(self, common_ns: Int64Array) -> Int64Array:
        """Times of the first rank's clock on that of this one: what `to_common` makes of them is the same, to 1 ns."""
        own_ns = common_ns - self.offset_ns
        if not self.drift:
            return own_ns
        shift_ns: Int64Array = np.rint((own_ns - self.anchor_ns) * (self.drift / (1 + self.drift))).astype(np.int64)
        return own_ns - shift_ns


def fit_clock(own_ns: Int64Array, differences_ns: Int64Array) -> RankClock:
    """The clock of a rank by the ends of at least one collective.

    Added to the ends `own_ns`, in order, `differences_ns` give the ends on the clock of the first rank.
    """
    drift = fit_drift(own_ns, differences_ns)
    if not drift:
        return RankClock(int(np.median(differences_ns)))
    anchor_ns = int(own_ns[len(own_ns) // 2])
    rest_ns = differences_ns - np.rint((own_ns - anchor_ns) * drift).astype(np.int64)
    return RankClock(int(np.median(rest_ns)), drift, anchor_ns)


def fit_drift(own_ns: Int64Array, differences_ns: Int64Array) -> float:
    """The slope of the differences over time (Theil and Sen's median of slopes); 0 where they show no line.

    There is none where the ends are few, where the line makes less than MIN_DRIFT_EFFECT_NS from the first to the last,
    where it is steeper than clocks run apart, or where stretches of time do not lie on it.
    """
    if len(own_ns) < _MIN_ENDS or np.ptp(differences_ns) < MIN_DRIFT_EFFECT_NS:
        return 0.0
    whole = len(own_ns) - len(own_ns) % _STRETCHES
    time, difference = (
        np.median(column[-whole:].reshape(_STRETCHES, -1), axis=1) for column in (own_ns - own_ns[0], differences_ns)
    )
    first, second = np.triu_indices(_STRETCHES, 1)
    apart = time[second] - time[first]
    if not (apart > 0).all():
        return 0.0
    [drift] = quantiles((difference[second] - difference[first]) / apart, (0.5,))
    effect_ns = abs(drift) * float(own_ns[-1] - own_ns[0])
    residual_ns = difference - drift * time
    residual_ns -= quantiles(residual_ns, (0.5,))[0]
    is_line = np.abs(residual_ns).max() <= _MAX_RESIDUAL_SHARE * effect_ns
    return drift if is_line and effect_ns >= MIN_DRIFT_EFFECT_NS and abs(drift) <= _MAX_DRIFT else 0.0
