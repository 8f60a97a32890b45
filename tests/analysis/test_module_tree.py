"""The tree of modules, and which of them some work belongs to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_traces import read_once

from perfdoctor.analysis.forward_ops import forward_ops_of
from perfdoctor.analysis.host.module_tree import ModuleTree, module_tree_of
from perfdoctor.testing import TraceBuilder
from perfdoctor.trace import Trace

ENGINE = "autograd::engine::evaluate_function: "


def tree_of(trace: Trace) -> ModuleTree:
    return module_tree_of(trace, forward_ops_of(trace))


def paths_of_kernels(trace: Trace) -> list[str | None]:
    """For each GPU item the path of the module that it belongs to."""
    tree, gpu = tree_of(trace), trace.gpu
    at_ns, thread = trace.calls.start_ns[gpu.call], trace.calls.thread[gpu.call]
    calls = tree.calls_of_work(forward_ops_of(trace), at_ns, thread, gpu.op)
    paths = [*tree.paths, None]
    return [paths[each] for each in np.append(tree.module, -1)[calls].tolist()]


def module(b: TraceBuilder, name: str, start_us: float, dur_us: float, thread: int = 1) -> None:
    b.frame(f"nn.Module: {name}", start_us, dur_us, thread)


def test_modules_nest_as_their_calls_do() -> None:
    b = TraceBuilder()
    for name, start, dur in (("Net_0", 0, 90), ("Block_0", 10, 30), ("Linear_0", 12, 5), ("Block_1", 50, 30)):
        module(b, name, start, dur)
    b.frame("train.py(3): main", 1, 80)  # functions between them change nothing
    module(b, "Linear_1", 55, 5)
    tree = tree_of(b.trace())
    assert tree.paths == ["Net_0", "Net_0/Block_0", "Net_0/Block_1", "Net_0/Block_0/Linear_0", "Net_0/Block_1/Linear_1"]
    assert tree.depth.tolist() == [0, 1, 1, 2, 2]
    assert tree.classes == ["Net", "Block", "Block", "Linear", "Linear"]
    assert tree.add_to_parents(np.array([1, 10, 100, 1000, 10_000])).tolist() == [11_111, 1010, 10_100, 1000, 10_000]


def test_a_module_that_two_others_call_is_in_the_tree_twice() -> None:
    b = TraceBuilder()
    for name, start in (("Encoder_0", 0), ("Decoder_0", 100)):
        module(b, name, start, 50)
        module(b, "Embedding_0", start + 10, 5)
    assert tree_of(b.trace()).paths[2:] == ["Encoder_0/Embedding_0", "Decoder_0/Embedding_0"]


def test_calls_of_every_step_are_of_the_same_module() -> None:
    b = TraceBuilder()
    for start in (0, 100, 200):
        module(b, "Net_0", start, 50)
        module(b, "Linear_0", start + 10, 5)
    tree = tree_of(b.trace())
    assert tree.paths == ["Net_0", "Net_0/Linear_0"]
    assert np.bincount(tree.module).tolist() == [3, 3]


def one_layer() -> TraceBuilder:
    """A model of one layer, its forward pass with number 5."""
    b = TraceBuilder()
    module(b, "Net_0", 0, 40)
    module(b, "Linear_0", 10, 20)
    return b.op("aten::linear", 12, 15, sequence=5).kernel("forward", 50, 5, launch_us=14)


def test_work_of_the_backward_pass_belongs_to_the_module_of_its_forward_op() -> None:
    b = one_layer().op(f"{ENGINE}AddmmBackward0", 60, 20, thread=2, sequence=5)
    b.kernel("backward", 90, 5, launch_us=65, thread=2).kernel("optimizer", 120, 5, launch_us=110)
    assert paths_of_kernels(b.trace()) == ["Net_0/Linear_0", "Net_0/Linear_0", None]


def test_on_the_cpu_the_backward_pass_runs_on_the_thread_of_the_loop() -> None:
    b = one_layer()
    module(b, "Trainer_0", 55, 100)  # calls backward()
    b.op(f"{ENGINE}AddmmBackward0", 60, 20, sequence=5).kernel("backward", 90, 5, launch_us=65)
    assert paths_of_kernels(b.trace()) == ["Net_0/Linear_0", "Net_0/Linear_0"]


def test_what_is_computed_again_belongs_to_the_module_that_does_it() -> None:
    b = TraceBuilder()
    for name, start, dur in (("Net_0", 0, 90), ("Block_0", 10, 40), ("Linear_0", 15, 10), ("Linear_1", 30, 10)):
        module(b, name, start, dur)
    b.op("aten::linear", 16, 5, sequence=5).op("aten::linear", 31, 5, sequence=6)
    b.op(f"{ENGINE}AddmmBackward0", 100, 80, thread=2, sequence=6)
    module(b, "Block_0", 110, 40, thread=2)
    module(b, "Linear_0", 115, 10, thread=2)
    b.op("aten::linear", 116, 5, thread=2, sequence=1)
    b.kernel("again", 200, 5, launch_us=117, thread=2).kernel("gradient", 210, 5, launch_us=170, thread=2)
    trace = b.trace()
    assert tree_of(trace).paths == ["Net_0", "Net_0/Block_0", "Net_0/Block_0/Linear_0", "Net_0/Block_0/Linear_1"]
    assert paths_of_kernels(trace) == ["Net_0/Block_0/Linear_0", "Net_0/Block_0/Linear_1"]


def test_a_module_that_is_called_alone_outside_of_a_backward_pass_is_at_the_top() -> None:
    b = TraceBuilder()
    module(b, "Net_0", 0, 90)
    module(b, "Head_0", 10, 10)
    module(b, "Head_0", 200, 10)
    assert tree_of(b.trace()).paths == ["Net_0", "Head_0", "Net_0/Head_0"]


def test_without_modules_the_tree_is_empty() -> None:
    b = TraceBuilder().op("aten::mm", 0, 9).kernel("k", 20, 5, launch_us=2)
    b.frame("train.py(3): main", 0, 50)
    trace = b.trace()
    assert len(tree_of(trace)) == 0
    assert paths_of_kernels(trace) == [None]


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "modules", "calls"),
    [
        ("mi300x-resnet-ddp.json.gz", 73, 450),
        ("h100-timesformer-bf16.json.gz", 334, 358),
        ("b200-eager.json.gz", 436, 436),
    ],
)
def test_the_trees_of_real_programs(corpus: Path, file: str, modules: int, calls: int) -> None:
    trace = read_once(corpus / file)
    tree = tree_of(trace)
    assert (len(tree), len(tree.frames)) == (modules, calls)
    assert (tree.module >= 0).all()
    assert (tree.parent < np.arange(len(tree))).all()
    assert len(set(tree.paths)) == len(tree)
