"""Context: what program a trace was recorded of, so that an advice fits it. Each claim has a sentence of evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from perfdoctor.analysis.context.name_signs import FRAMEWORK_SIGNS, PARALLELISM_SIGNS, SCHEDULES_AHEAD, SERVING_ENGINES
from perfdoctor.analysis.context.names_in_trace import NamesInTrace, names_in_trace
from perfdoctor.analysis.context.program_phase import FORWARD_ONLY, Phase, phase_of
from perfdoctor.analysis.context.warm_up import describe_once, steadiness_of
from perfdoctor.analysis.kernels.kernel_classes import KernelClasses
from perfdoctor.analysis.timeline.first_use import FirstUse
from perfdoctor.facts.captured import NO_FACTS, CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.gpu.generations import possible_generations
from perfdoctor.trace import vocabulary
from perfdoctor.trace.arrays import BoolArray
from perfdoctor.trace.tables.distinct import occurring
from perfdoctor.trace.tables.intervals import Intervals
from perfdoctor.trace.tables.model import KERNEL, Trace
from perfdoctor.trace.tables.steps import Steps
from perfdoctor.value_limits import Share

# PyTorch's recipe on compiled optimizers: "only supported on CUDA devices with compute capability >= 7.0".
_OLDEST_WITH_TRITON = (7, 0)
# CUDA C++ Programming Guide, table of arithmetic instructions: bfloat16 from compute capability 8.0 on.
_OLDEST_WITH_BFLOAT16 = (8, 0)
_WITHOUT_BFLOAT16 = ("Pascal", "Volta", "Turing")

_OF_DATA = frozenset({"DDP", "FSDP", "ZeRO", "DataParallel"})


@frozen_dataclass
class Context:
    """What program a trace was recorded of.

    Attributes:
        phase: What the program does; "unknown" where the trace does not say, or contradicts itself.
        frameworks: The frameworks that it uses, the most general first; "PyTorch" alone for a plain program.
        parallelism: How it spreads over devices.
        compiled_share: Share (0 to 1) of the kernels that compiled code launched, or that Triton generated; None
            without kernels, and where no launch can be joined to an op.
        graph_share: Share (0 to 1) of the kernels that a graph launched; None where no kernel has a known launch.
        torch_version: The release of PyTorch; None where nothing recorded it.
        device_generations: The generations of which the device can be, by its kernels; empty where the device is named
            or no kernel proves one.
        steady: False where the analysed time holds what happens once, such as compilation; None where unknown.
        evidence: A sentence for each claim.
        decodes: Whether it generates tokens one by one.
        is_server_host: Whether it is the process of a server in which no model runs.
        lacks_triton: Whether its device is one that Triton, in which torch.compile writes kernels, does not support.
        lacks_bfloat16: Whether its device is one that does not compute in bfloat16; False where the device is unknown.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("phase", "frameworks", "parallelism", "compiled_share", "graph_share", "torch_version", "steady", "evidence"),
    )

    phase: Phase
    frameworks: tuple[str, ...]
    parallelism: tuple[str, ...]
    compiled_share: Share | None
    graph_share: Share | None
    torch_version: str | None
    device_generations: tuple[str, ...]
    steady: bool | None
    evidence: tuple[str, ...]
    decodes: bool = False
    is_server_host: bool = False
    lacks_triton: bool = False
    lacks_bfloat16: bool = False

    @property
    def schedules_ahead(self) -> bool:
        """Whether it is a serving engine that prepares a pass while the GPU works on the one before."""
        return SCHEDULES_AHEAD in self.frameworks

    @property
    def is_forward_only(self) -> bool:
        """Whether it is known to update no weights: it infers or evaluates."""
        return self.phase in FORWARD_ONLY


UNKNOWN_CONTEXT = Context(
    phase="unknown",
    frameworks=(),
    parallelism=(),
    compiled_share=None,
    graph_share=None,
    torch_version=None,
    device_generations=(),
    steady=None,
    evidence=(),
)


def context_of(
    classes: KernelClasses,
    is_compiled: BoolArray,
    in_window: BoolArray,
    steps: Steps,
    window: Intervals,
    first_use: FirstUse,
    drift_ns: int = 0,
    facts: CapturedFacts = NO_FACTS,
) -> Context:
    """What program a trace was recorded of.

    `drift_ns` is by how much the clocks of CPU and GPU drift apart within the trace, and `first_use` what happens once
    in it.
    """
    trace, names = classes.trace, names_in_trace(classes.trace)
    signs = {each.title: names.find_sign(each) for each in FRAMEWORK_SIGNS}
    frameworks = {title: sign for title, sign in signs.items() if sign is not None}
    phase = phase_of(trace, names, tuple(title for title in frameworks if title in SERVING_ENGINES))
    parallelism = parallelism_of(trace, names, phase.phase)
    kernels = (trace.gpu.kind == KERNEL) & in_window
    compiled, graphed = _count_compiled(trace, kernels, is_compiled), _count_graphed(trace, kernels)
    steadiness = steadiness_of(steps, window, first_use, drift_ns)
    once = tuple(each for each in describe_once(first_use) if each not in steadiness.reasons)
    steady = "not steady" if steadiness.steady is False else "steady or warm-up unknown"
    generations, device = _judge_device(classes)
    shares = (("launched by compiled code or generated by Triton", compiled), ("launched by graphs", graphed))
    evidence = (
        f"phase {phase.phase}: {phase.reason}",
        *(f"{title}, by {sign}." for title, sign in (*frameworks.items(), *parallelism.items())),
        *(f"{count:,} of {of:,} kernels are {how}." for how, (count, of) in shares if count),
        *device,
        *(f"{steady}: {reason}" for reason in steadiness.reasons),
        *once,
    )
    return Context(
        phase=phase.phase,
        frameworks=tuple(frameworks),
        parallelism=tuple(parallelism),
        compiled_share=_share(*compiled),
        graph_share=_share(*graphed),
        torch_version=facts.torch,
        device_generations=generations,
        steady=steadiness.steady,
        evidence=evidence,
        decodes=phase.decodes,
        is_server_host=phase.is_server_host,
        lacks_triton=_is_older(trace.device.capability, _OLDEST_WITH_TRITON, generations, ("Pascal",)),
        lacks_bfloat16=_is_older(trace.device.capability, _OLDEST_WITH_BFLOAT16, generations, _WITHOUT_BFLOAT16),
    )


def _count_compiled(trace: Trace, kernels: BoolArray, is_compiled: BoolArray) -> tuple[int, int]:
    """How many kernels compiled code launched, and of how many that is known: of none where no kernel has an op."""
    count = int((kernels & is_compiled).sum())
    known = count > 0 or bool((kernels & (trace.gpu.op >= 0)).any())
    return count, int(kernels.sum()) if known else 0


def _count_graphed(trace: Trace, kernels: BoolArray) -> tuple[int, int]:
    """How many kernels a graph launched, of those whose launch is known."""
    launched = kernels & (trace.gpu.call >= 0)
    launches = trace.match_rows(trace.calls, vocabulary.GRAPH_LAUNCH_CALL)
    return int(launches[trace.gpu.call[launched]].sum()), int(launched.sum())


def _share(count: int, of: int) -> float | None:
    return count / of if of else None


def _judge_device(classes: KernelClasses) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The generations of which an unnamed device can be, and the sentence about it; both empty for a named one."""
    trace = classes.trace
    if trace.device.name is not None:
        return (), ()
    devices = len(occurring(trace.gpu.device))
    if devices > 1:
        return (), (f"device unknown: the kernels ran on {devices} devices, and the trace names none.",)
    architectures = (kernel.arch for kernel in classes.by_name.values() if kernel.arch is not None)
    found = possible_generations(architectures, trace.device.sm_count)
    return found, (f"device: by its kernels {' or '.join(found)}.",) if found else ()


def _is_older(
    capability: tuple[int, int] | None, oldest: tuple[int, int], generations: tuple[str, ...], older: tuple[str, ...]
) -> bool:
    """Whether a device is older than the oldest that can do something; AMD's report capabilities from 9.0 on.

    `generations` are those of which it can be, by its kernels; `older` are those that cannot do it.
    """
    if capability is not None:
        return tuple(capability) < oldest
    return bool(generations) and set(generations) <= set(older)


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
