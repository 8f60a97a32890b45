"""Work that a backward pass does again, by the op of the older kind, by frames, and by autograd's numbers."""

from __future__ import annotations

from perfdoctor.analysis.recomputed_work import recomputed_sections_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace.tables import intervals as iv

ENGINE = "autograd::engine::evaluate_function: MulBackward0"
RECOMPUTE = "torch/utils/checkpoint.py(1120): unpack_hook"


def newer_kind(*, numbers: bool, frames: bool = False) -> TraceBuilder:
    """A node that computes two ops again before its own; a second one that does not."""
    trace = TraceBuilder(device=None)
    first, second = ({"sequence": 3}, {"sequence": 4}) if numbers else ({}, {})
    trace.op(ENGINE, 100, 300).op("aten::addmm", 120, 100, **first).op("aten::mul", 230, 50, **second)
    trace.op("aten::mul", 300, 50).op("aten::mul", 355, 40)
    trace.op(ENGINE, 400, 100).op("aten::mul", 410, 50)
    if frames:
        trace.frame(RECOMPUTE, 110, 180)
    return trace


def sections(trace: TraceBuilder, *, uses_checkpoint: bool) -> list[list[float]]:
    found = recomputed_sections_of(trace.trace(), iv.window(0, 10_000_000), uses_checkpoint=uses_checkpoint)
    return [[start / 1000, end / 1000] for start, end in found.time.tolist()]


def test_ops_that_record_a_graph_in_a_backward_node_are_computed_again() -> None:
    assert sections(newer_kind(numbers=True), uses_checkpoint=True) == [[100, 280]]
    assert sections(newer_kind(numbers=True), uses_checkpoint=False) == []
    assert sections(newer_kind(numbers=False), uses_checkpoint=True) == []


def test_frames_say_it_without_any_fact() -> None:
    assert sections(newer_kind(numbers=False, frames=True), uses_checkpoint=False) == [[100, 280]]


def test_a_whole_backward_pass_that_records_is_none() -> None:
    trace = TraceBuilder(device=None).op(ENGINE, 100, 300)
    trace.op("aten::mul", 110, 50, sequence=5).op("aten::mul", 170, 50, sequence=6)
    assert sections(trace, uses_checkpoint=True) == []


def test_the_older_kind_ends_where_its_own_backward_pass_begins() -> None:
    trace = TraceBuilder(device=None).op("CheckpointFunctionBackward", 100, 400)
    trace.op("aten::addmm", 120, 100).op(ENGINE, 300, 150).op("aten::mul", 310, 50)
    assert sections(trace, uses_checkpoint=False) == [[100, 220]]
