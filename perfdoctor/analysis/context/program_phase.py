"""Whether a program trains, evaluates or runs forward only; "unknown" where the trace contradicts itself.

Training needs both halves: gradients (backward ops, kernels that compute gradients of weights) and an optimizer.
Gradients alone may be an adversarial example, a physical force or a piece of a step; zeroed gradients without a
backward pass are a recording that lost it. Forward only is a lack of all, where enough was recorded to show them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from perfdoctor.analysis.context.names_in_trace import NamesInTrace, find_name
from perfdoctor.analysis.context.where_it_ran import is_server_host
from perfdoctor.trace import vocabulary
from perfdoctor.trace.tables.model import Trace

Phase: TypeAlias = Literal["training", "inference", "evaluation", "unknown"]
FORWARD_ONLY: tuple[Phase, ...] = ("inference", "evaluation")
"""The phases in which no backward pass follows, and no weights are updated."""

# With fewer ops a recording shows a few calls, not a pass through a model.
_MIN_OPS = 10


class PhaseVerdict(NamedTuple):
    """The phase of a program, why, whether it generates tokens one by one, and whether it serves what others run."""

    phase: Phase
    reason: str
    decodes: bool = False
    is_server_host: bool = False


def phase_of(trace: Trace, names: NamesInTrace, engines: tuple[str, ...]) -> PhaseVerdict:
    """The phase of a program."""
    backward = _find_backward(names)
    optimizer = _find_optimizer(names)
    decode = find_name(names.ranges, vocabulary.DECODE_RANGE) or find_name(names.frames, vocabulary.DECODE_FRAME)
    if (backward or optimizer) and (engines or decode):
        serving = decode or engines[0]
        return PhaseVerdict("unknown", f"it generates ({serving}) and trains ({backward or optimizer}).")
    if backward and optimizer:
        evaluation = _find_evaluation(names)
        beside = f"; it also evaluates ({evaluation})" if evaluation else ""
        return PhaseVerdict("training", f"backward pass ({backward}) and optimizer ({optimizer}){beside}.")
    if backward:
        return _judge_gradients(trace, names, backward)
    if optimizer:
        return _judge_optimizer(trace, optimizer)
    return _judge_forward(trace, names, engines, decode)


def _find_backward(names: NamesInTrace) -> str | None:
    return (
        find_name(names.ops, vocabulary.BACKWARD_NODE)
        or find_name(names.ranges, vocabulary.BACKWARD_RANGE)
        or find_name(names.ranges, vocabulary.USER_BACKWARD_RANGE)
        or find_name(names.kernels, vocabulary.WEIGHT_GRADIENT_KERNEL)
    )


def _find_optimizer(names: NamesInTrace) -> str | None:
    return (
        find_name(names.ranges, vocabulary.OPTIMIZER_RANGE)
        or find_name(names.ops, vocabulary.OPTIMIZER_OP)
        or find_name(names.kernels, vocabulary.OPTIMIZER_KERNEL)
        or find_name(names.frames, vocabulary.OPTIMIZER_FRAME)
    )


def _find_evaluation(names: NamesInTrace) -> str | None:
    by_range = find_name(names.ranges, vocabulary.EVALUATION_RANGE)
    return by_range or find_name(names.frames, vocabulary.EVALUATION_FRAME)


def _judge_gradients(trace: Trace, names: NamesInTrace, backward: str) -> PhaseVerdict:
    """Gradients without an optimizer: training where the recording could not have named one."""
    of_weights = find_name(names.kernels, vocabulary.WEIGHT_GRADIENT_KERNEL)
    if not len(trace.ranges) and not len(trace.ops) and of_weights:
        return PhaseVerdict("training", f"kernels compute gradients of weights ({of_weights}); no ops were recorded.")
    return PhaseVerdict("unknown", f"there is a backward pass ({backward}) but no optimizer step.")


def _judge_optimizer(trace: Trace, optimizer: str) -> PhaseVerdict:
    """An optimizer without gradients: training where the kernels of the backward pass were not recorded."""
    if not len(trace.gpu) or not len(trace.ops):
        return PhaseVerdict("training", f"optimizer ({optimizer}); the backward pass was not recorded.")
    return PhaseVerdict("unknown", f"there is an optimizer step ({optimizer}) but no backward pass.")


def _judge_forward(trace: Trace, names: NamesInTrace, engines: tuple[str, ...], decode: str | None) -> PhaseVerdict:
    """A program that shows neither gradients nor an optimizer."""
    zeroing = find_name(names.ranges, vocabulary.ZERO_GRAD)
    if zeroing:
        return PhaseVerdict(
            "unknown", f"gradients are zeroed ({zeroing}) but there is neither backward pass nor optimizer."
        )
    gradient = find_name(names.ops, vocabulary.GRADIENT_OP)
    if gradient:
        return PhaseVerdict("unknown", f"there is an op of a backward pass ({gradient}), but not the pass around it.")
    if is_server_host(trace):
        server = find_name(names.frames, vocabulary.SERVER_FRAME)
        return PhaseVerdict("unknown", f"it serves a model that another process runs ({server}).", is_server_host=True)
    if decode:
        return PhaseVerdict("inference", f"it decodes tokens ({decode}).", decodes=True)
    evaluation = _find_evaluation(names)
    if evaluation:
        return PhaseVerdict("evaluation", f"forward passes in {evaluation}, no backward pass and no optimizer.")
    if engines:
        return PhaseVerdict("inference", f"{engines[0]} only runs models forward.")
    if len(trace.ops) >= _MIN_OPS:
        prepares = find_name(names.ops, vocabulary.GRADIENT_PREPARATION)
        though = f", though gradients are prepared ({prepares})" if prepares else ""
        return PhaseVerdict(
            "inference", f"forward only: no backward pass and no optimizer among {len(trace.ops):,} ops{though}."
        )
    if len(trace.ops):
        return PhaseVerdict("unknown", f"only {len(trace.ops)} ops were recorded.")
    return PhaseVerdict("unknown", "no ops were recorded, and no kernel computes a gradient.")
