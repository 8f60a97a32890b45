"""Ids that no rule has, and that none may take: of rules that went, and of a catalogue's that others say already."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_WENT = "The rule went, as only generated engines ever set it off"
_UNSEEN = "The rule went, as no recording ever set it off"

RESERVED_RULES: Mapping[str, str] = MappingProxyType(
    {
        "PD207": f"{_UNSEEN}: PD209 says which matrix products take longer than comparable ones do, whatever GPU their "
        "code is for.",
        "PD208": f"{_UNSEEN}: `perfdoctor show convolutions` has the groups of each convolution, and `perfdoctor "
        "guide` says how much of their time is in depthwise ones.",
        "PD308": f"{_UNSEEN}: PD707 says whether memory grows over a run, and the allocations of which line stay.",
        "PD403": f"{_UNSEEN}: the report and `perfdoctor guide` name DataParallel, and the account by place has the "
        "copies that it makes in each step.",
        "PD407": f"{_UNSEEN}: PD402 says how many GB/s the exposed collectives reach, `perfdoctor show collectives` "
        "those of each group, and PD401 which ranks a slow link makes late.",
        "PD411": f"{_UNSEEN}: PD402 reports what FSDP gathers too late as of all programs, with the settings that "
        "prefetch it.",
        "PD501": f"{_UNSEEN}: PD203 and PD209 say which convolutions are slow, and `perfdoctor try --only "
        "cudnn-benchmark` measures what the autotuner gives.",
        "PD504": "What zero_grad(set_to_none=False) costs is the fills and sums that PD304 measures.",
        "PD508": "A loader's setting is a fault where it costs time, which PD101, PD105 and PD112 measure.",
        "PD510": "Recompute is worth its time or not, by the memory that is free: PD307 answers that one question.",
        "PD511": "A flag is a fault where products run without Tensor Cores, which PD201 measures.",
        "PD802": f"{_WENT}: the account by place has the small kernels between the products of a pass that decodes, "
        "and the passes of the report say how long it takes, and how long reading its weights takes at least.",
        "PD804": f"{_WENT}: the passes of the report say how many of them read prompts, of how many tokens, and how "
        "long each takes.",
        "PD805": f"{_WENT}: PD801 says how long the GPU waits while the engine samples, and PD102 which call waits for "
        "the copies that the CPU samples from.",
        "PD806": f"{_WENT}: PD402 reports the exposed collectives of engines as of all programs, and the passes of the "
        "report say how many a layer has and how long they take.",
        "PD807": f"{_WENT}: PD801 says how long the GPU waits while the engine tokenizes or turns tokens into text, "
        "and PD103 what else keeps it waiting.",
    }
)
"""Why there is no such rule, by its id: a sentence that names what tells the same time."""
