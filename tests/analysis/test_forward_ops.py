"""Which forward op the work of a backward pass belongs to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_traces import read_once

from perfdoctor.analysis.forward_ops import forward_ops_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace

ENGINE = "autograd::engine::evaluate_function: "


def forward_of(trace: Trace) -> dict[str, str | None]:
    """For each op of a backward pass the forward op that it belongs to, by name and sequence number."""
    ops, found = trace.ops, forward_ops_of(trace)

    def name(row: int) -> str | None:
        return None if row < 0 else f"{trace.strings[ops.name[row]]} {ops.sequence[row]}"

    rows = np.flatnonzero(found.in_backward).tolist()
    return {trace.strings[ops.name[row]].removeprefix(ENGINE): name(found.forward[row]) for row in rows}


def node(b: TraceBuilder, name: str, start_us: float, sequence: int | None, dur_us: float = 10) -> None:
    """A node of the backward pass as the engine runs it, on its own thread."""
    b.op(f"{ENGINE}{name}", start_us, dur_us, thread=2, sequence=sequence)
    b.op(name, start_us + 1, dur_us - 2, thread=2, sequence=sequence)


def test_a_node_and_all_that_runs_in_it_belong_to_the_op_of_its_number() -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5).op("aten::relu", 10, 9, sequence=6)
    node(b, "ReluBackward0", 30, 6)
    node(b, "AddmmBackward0", 50, 5)
    b.op("aten::mm", 52, 2, thread=2)
    assert forward_of(b.trace()) == {
        "ReluBackward0": "aten::relu 6",
        "AddmmBackward0": "aten::linear 5",
        "aten::mm": "aten::linear 5",
    }


def test_of_several_ops_that_saw_a_number_the_last_one_made_the_node() -> None:
    b = TraceBuilder().op("aten::detach", 0, 1, sequence=5).op("aten::zeros", 2, 1, sequence=5)
    b.op("aten::linear", 4, 9, sequence=5).op("aten::addmm", 5, 7, sequence=5).op("aten::relu", 20, 1, sequence=6)
    node(b, "AddmmBackward0", 50, 5)
    assert forward_of(b.trace())["AddmmBackward0"] == "aten::addmm 5"


def test_a_number_that_comes_again_later_is_another_op() -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5)
    node(b, "AddmmBackward0", 50, 5)
    b.op("aten::conv2d", 100, 9, thread=3, sequence=5)
    assert set(forward_of(b.trace()).values()) == {"aten::linear 5"}


def test_a_node_whose_forward_pass_was_not_recorded_belongs_to_nothing() -> None:
    b = TraceBuilder()
    node(b, "AddmmBackward0", 50, 5)
    b.op("aten::conv2d", 100, 9, sequence=5)
    assert set(forward_of(b.trace()).values()) == {None}


def test_the_accumulation_of_a_gradient_has_no_number() -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5)
    node(b, "torch::autograd::AccumulateGrad", 50, None)
    b.op("aten::add_", 52, 2, thread=2)
    assert forward_of(b.trace()) == {"torch::autograd::AccumulateGrad": None, "aten::add_": None}


def test_an_activation_that_is_computed_again_belongs_to_the_node_that_needs_it() -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5)
    node(b, "AddmmBackward0", 50, 5, dur_us=40)
    b.op("aten::relu", 55, 5, thread=2, sequence=1)
    assert forward_of(b.trace())["aten::relu"] == "aten::linear 5"


def test_ops_of_a_forward_pass_belong_to_none() -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5).op("aten::addmm", 1, 5, sequence=5)
    found = forward_ops_of(b.trace())
    assert not found.in_backward.any()
    assert (found.node < 0).all()
    assert (found.forward < 0).all()
    assert len(forward_ops_of(TraceBuilder().range("alone", 0, 1).trace()).forward) == 0


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "nodes"),
    [
        ("mi300x-resnet-ddp.json.gz", 213),
        ("mi300x-resnet18-ddp.json.gz", 355),
        ("a100-ddp-control/rank3.json.gz", 2382),
    ],
)
def test_every_numbered_node_of_a_complete_recording_finds_its_op(corpus: Path, file: str, nodes: int) -> None:
    trace = read_once(corpus / file)
    ops, found = trace.ops, forward_ops_of(trace)
    engine = np.flatnonzero(trace.match_rows(ops, f"^{ENGINE}") & (ops.sequence >= 0))
    assert len(engine) == nodes
    forward = found.forward[engine]
    assert (forward >= 0).all()
    assert (ops.sequence[forward] == ops.sequence[engine]).all()
    assert (ops.start_ns[forward] < ops.start_ns[engine]).all()


@pytest.mark.parametrize("depth", [1, 2, 7, 8, 33])
def test_the_innermost_node_is_found_from_any_depth(depth: int) -> None:
    b = TraceBuilder().op("aten::linear", 0, 9, sequence=5).op("aten::relu", 10, 9, sequence=6)
    node(b, "ReluBackward0", 100, 6, dur_us=1000)
    b.op("AddmmBackward0", 110, 900, thread=2, sequence=5)
    for level in range(1, depth + 1):
        b.op(f"inner {level}", 110 + level, 900 - 2 * level, thread=2)
    found = forward_of(b.trace())
    assert {found[f"inner {level}"] for level in range(1, depth + 1)} == {"aten::linear 5"}
    assert found["ReluBackward0"] == "aten::relu 6"
