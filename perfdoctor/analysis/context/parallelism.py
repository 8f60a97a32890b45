"""Which kinds of parallelism a program uses: by what marks them, else by the kinds of its collectives."""

from __future__ import annotations

from collections.abc import Mapping

from perfdoctor.analysis.context.name_signs import PARALLELISM_SIGNS
from perfdoctor.analysis.context.names_in_trace import NamesInTrace
from perfdoctor.analysis.context.program_phase import Phase
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables.model import KERNEL, Trace

_OF_DATA = frozenset({"DDP", "FSDP", "ZeRO", "DataParallel"})


def parallelism_of(trace: Trace, names: NamesInTrace, phase: Phase) -> Mapping[str, str]:
    """The kinds of parallelism, each with what shows it."""
    signs = {each.title: names.find_sign(each) for each in PARALLELISM_SIGNS}
    found = {title: sign for title, sign in signs.items() if sign is not None}
    kinds = _collective_kinds(trace)
    # DTensor gathers activations and scatters them again between its shards of the sequence.
    if "tensor parallel" in found and {"all_gather", "reduce_scatter"} <= kinds and "all_reduce" not in kinds:
        found.setdefault("sequence parallel", "all-gather and reduce-scatter between DTensors")
    if phase == "training" and kinds == {"all_reduce"} and not found.keys() & _OF_DATA:
        found["data parallel"] = "all-reduce as the only collective, without DDP"
    return found


def _collective_kinds(trace: Trace) -> frozenset[str]:
    """The kinds of collectives by the ranges around them, without those ranges by the kernels."""
    ranges = {
        trace.strings[code] for code in trace.match_strings(trace.ranges, vocabulary.COLLECTIVE_RANGE).nonzero()[0]
    }
    if not ranges:
        kernels = trace.match_strings(trace.gpu, vocabulary.NCCL_KERNEL).nonzero()[0]
        launched = set(trace.gpu.name[trace.gpu.kind == KERNEL].tolist()) if len(kernels) else set()
        ranges = {trace.strings[code] for code in kernels if code in launched}
    return frozenset(vocabulary.collective_kind(name) for name in ranges)
