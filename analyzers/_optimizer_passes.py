"""How often an optimizer's step goes over the parameters, by its kinds of op."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from perfdoctor.rules import Int64Array

# Ops that take less than this share of the optimizer's time are counters and checks, not passes.
_MIN_PASS_SHARE = 0.05


def longest_pass(time_ns: npt.NDArray[Any], count: Int64Array) -> tuple[float, int]:
    """Time of the longest pass over the parameters (all steps together), and the number of passes a step.

    `count` is how often each kind was called: the rarest that is no counter or check is called once a pass and
    parameter.
    """
    is_pass = time_ns >= _MIN_PASS_SHARE * time_ns.sum()
    each = np.maximum(np.round(count[is_pass] / count[is_pass].min()), 1)
    return float((time_ns[is_pass] / each).max()), int(each.sum())
