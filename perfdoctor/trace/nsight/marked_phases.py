"""Give the phases that `perfdoctor run --nvtx-only` marks under nsys the names that PyTorch's profiler gives them.

So steps and waits for the loader are found in an export as in a trace of the profiler.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import Int64Array
from perfdoctor.trace.tables.string_codes import StringCodes

DOMAIN = "perfdoctor"
_DOMAIN_CREATED = 75  # ENUM_NSYS_EVENT_TYPE: the row's text is the name of the domain
_STEP = "step"
_NAMES: Mapping[str, str] = {
    "data": vocabulary.dataloader_next_name(),
    "optimizer": vocabulary.optimizer_step_name(),
    "zero_grad": vocabulary.zero_grad_name(),
    "forward": vocabulary.FORWARD_MARK_NAME,
    "backward": vocabulary.BACKWARD_MARK_NAME,
}


def rename_phases(
    block: Mapping[str, Int64Array], texts: Int64Array, raw: StringCodes, strings: StringCodes
) -> Int64Array:
    """The codes of the names of NVTX events, those of perfdoctor's domain in the profiler's words.

    Steps are numbered in the order of time. `block` holds `start_ns`, `type`, `domain`, `process` and `name`; `texts`
    point into `raw`, the texts as they stand in the file, NONE where an event has none.
    """
    names = block["name"]
    code = raw.get(DOMAIN)
    created = (block["type"] == _DOMAIN_CREATED) & (texts == code) if code is not None else np.zeros(len(names), bool)
    if not created.any():
        return names
    # Each process counts its domains anew.
    domains = np.column_stack((block["process"], block["domain"]))
    which = np.unique(domains, axis=0, return_inverse=True)[1].reshape(-1)
    inside = np.isin(which, which[created]) & (block["type"] != _DOMAIN_CREATED)
    renamed = names.copy()
    for phase, name in _NAMES.items():
        if phase in raw:
            renamed[inside & (texts == raw[phase])] = strings[name]
    if _STEP in raw:
        for process in np.unique(domains[inside, 0]).tolist():
            steps = np.flatnonzero(inside & (texts == raw[_STEP]) & (block["process"] == process))
            steps = steps[np.argsort(block["start_ns"][steps], kind="stable")]
            renamed[steps] = [strings[vocabulary.profiler_step_name(number)] for number in range(len(steps))]
    return renamed
