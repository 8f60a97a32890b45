"""The phases that `perfdoctor run --nvtx-only` marks under nsys, under the names that PyTorch's profiler gives them.

So steps and waits for the loader are found in an export as they are in a trace of the profiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.nsight.export_tables import Strings

DOMAIN = "perfdoctor"
_DOMAIN_CREATED = 75  # ENUM_NSYS_EVENT_TYPE: the row's text is the name of the domain
_STEP = "step"
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "data": vocabulary.DATALOADER_NEXT_NAME,
        "optimizer": vocabulary.OPTIMIZER_STEP_NAME,
        "zero_grad": vocabulary.ZERO_GRAD_NAME,
        "forward": vocabulary.FORWARD_MARK_NAME,
        "backward": vocabulary.BACKWARD_MARK_NAME,
    }
)


def rename_phases(block: Mapping[str, Int64Array], texts: Int64Array, raw: Strings, strings: Strings) -> Int64Array:
    """The names of NVTX events, with those of our domain in the profiler's words; steps are numbered in their order.

    Args:
        block: `start_ns`, `type`, `domain`, `process` and `name` of the events.
        texts: For each the code of its text in `raw`, -1 for none.
        raw: The texts as they stand in the file.
        strings: Where names get their codes.
    """
    names = block["name"]
    ours = raw.get(DOMAIN)
    created = (block["type"] == _DOMAIN_CREATED) & (texts == ours) if ours is not None else np.zeros(len(names), bool)
    if not created.any():
        return names
    # Ids of domains are given in each process anew.
    where = np.column_stack((block["process"], block["domain"]))
    which = np.unique(where, axis=0, return_inverse=True)[1].reshape(-1)
    inside = np.isin(which, which[created]) & (block["type"] != _DOMAIN_CREATED)
    renamed = names.copy()
    for phase, name in _NAMES.items():
        if phase in raw:
            renamed[inside & (texts == raw[phase])] = strings[name]
    if _STEP in raw:
        for process in np.unique(where[inside, 0]).tolist():
            steps = np.flatnonzero(inside & (texts == raw[_STEP]) & (block["process"] == process))
            steps = steps[np.argsort(block["start_ns"][steps], kind="stable")]
            renamed[steps] = [strings[vocabulary.profiler_step_name(number)] for number in range(len(steps))]
    return renamed
