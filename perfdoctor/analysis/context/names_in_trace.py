"""The distinct names of a trace as texts, one name a line: a pattern is searched once instead of once for each name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfdoctor.analysis.context.name_signs import NameSigns
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import IntArray
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.model import KERNEL, Trace

_LONGEST_QUOTE = 70


@frozen_dataclass
class NamesInTrace:
    """The distinct names of a trace, one a line.

    Attributes:
        files: The files of its Python frames, each behind a slash, in no order.
        frames: Its Python frames.
        ranges: Its annotations.
        ops: Its operators.
        kernels: Its kernels.
        groups: The descriptions of its process groups.
    """

    files: str
    frames: str
    ranges: str
    ops: str
    kernels: str
    groups: str

    def find_sign(self, signs: NameSigns) -> str | None:
        """What shows a framework or a parallelism, as words for a sentence; None where nothing does."""
        for file in signs.files:
            if file in self.files:
                return f"Python files of {file[1:]}"
        for text, pattern, kind in (
            (self.groups, signs.groups, "process group"),
            (self.ranges, signs.ranges, "range"),
            (self.ops, signs.ops, "op"),
            (self.kernels, signs.kernels, "kernel"),
            (self.frames, signs.frames, "frame"),
        ):
            name = find_name(text, pattern)
            if name is not None:
                return f"the {kind} {name}"
        return None


def names_in_trace(trace: Trace) -> NamesInTrace:
    """The distinct names of a trace."""
    gpu = trace.gpu
    frames = [trace.strings[code] for code in trace.name_ids(trace.frames)]
    return NamesInTrace(
        files="\n".join(f"/{file}" for file in {name.partition("(")[0] for name in frames}),
        frames="\n".join(frames),
        ranges=_join_names(trace, (*trace.name_ids(trace.ranges), *trace.name_ids(trace.gpu_ranges))),
        ops=_join_names(trace, trace.name_ids(trace.ops)),
        kernels=_join_codes(trace, gpu.name[gpu.kind == KERNEL]),
        groups=_join_codes(trace, trace.comms.description),
    )


def find_name(text: str, pattern: str) -> str | None:
    """The first name in a text of one name a line in which a pattern is found, shortened; None where there is none."""
    found = re.search(pattern, text, re.MULTILINE) if pattern and text else None
    if found is None:
        return None
    start = found.start()
    start += text.startswith("\n", start)  # "no letter" before a word may be the end of the line above
    end = text.find("\n", start)
    name = text[text.rfind("\n", 0, start) + 1 : len(text) if end < 0 else end]
    return name if len(name) <= _LONGEST_QUOTE else f"{name[:_LONGEST_QUOTE]}..."


def _join_codes(trace: Trace, codes: IntArray) -> str:
    return _join_names(trace, occurring(codes).tolist())


def _join_names(trace: Trace, codes: Iterable[int]) -> str:
    return "\n".join(trace.strings[code] for code in codes)
