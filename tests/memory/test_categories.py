"""What an allocation is for, by when and where it was made and freed; what nothing shows stays unknown."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perfdoctor.memory.categories import CATEGORIES
from perfdoctor.rank import Rank
from perfdoctor.testing import TraceBuilder

NEVER = None
STEP_US = 1000


def loop(allocations: Iterable[tuple[float, float | None]], steps: int = 2) -> Rank:
    """A training loop on the CPU in which each of some allocations is made and freed at some instants.

    A step: loading 0 to 100, a module 100 to 300, the backward pass 400 to 600, the optimizer 700 to 900.
    """
    b = TraceBuilder(device=None)
    for number in range(steps):
        at = number * STEP_US
        b.step(at, STEP_US).range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100)
        b.frame("nn.Module: Linear_0", at + 100, 200)
        b.op("aten::linear", at + 100, 190, sequence=number)
        node = "autograd::engine::evaluate_function: AddmmBackward0"
        b.op(node, at + 400, 150, sequence=number).op("aten::mm", at + 410, 100)
        b.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 550, 50)
        b.range("Optimizer.step#SGD.step", at + 700, 200)
    b.frame("torch/nn/modules/linear.py(96): __init__", -100, 50)
    b.range("gloo:all_reduce", 320, 50)
    events = []
    for number, (made, freed) in enumerate(allocations):
        events.append((made, 1000 + number, number))
        if freed is not None:
            events.append((freed, -1000 - number, number))
    for at, size, address in sorted(events):
        b.memory(at, size, address)
    return Rank(b.trace())


# Every loop has these as well, so that no pass is the last one, and the peak is where most is alive.
FRAME = [(110.0, 460.0), (620.0, 640.0), (750.0, 760.0), (1110.0, 1460.0), (1750.0, 1760.0), (1950.0, 1960.0)]


@pytest.mark.parametrize(
    ("made", "freed", "category"),
    [
        (-80, NEVER, "parameters"),
        (-80, 1450, "activations"),
        (50, 950, "inputs"),
        (120, 450, "activations"),
        (120, 650, "activations"),  # alive in the backward pass, and made by an op that made a node of it
        (120, 200, "temporaries"),
        (420, 440, "temporaries"),
        (420, 1050, "gradients"),
        (560, NEVER, "gradients"),
        (710, 800, "temporaries"),
        (710, NEVER, "optimizer_state"),
        (710, 1720, "optimizer_state"),
        (330, NEVER, "collectives"),
        (310, NEVER, "unknown"),
        (310, 650, "unknown"),  # made outside of modules, and freed outside of the backward pass
        (1930, NEVER, "unknown"),
    ],
)
def test_a_category_comes_from_when_it_was_made_and_freed(made: float, freed: float | None, category: str) -> None:
    big = [(made, freed)] * 20  # so that the peak is while they are alive
    [memory] = loop([*FRAME, *big]).memory
    peak = memory.peak
    assert peak is not None
    of_category = [CATEGORIES[each] for each in peak.categories.tolist()]
    assert int(peak.bytes.sum()) == peak.allocated_bytes
    assert of_category.count(category) >= 20


def test_a_forward_pass_in_which_the_recording_ends_is_as_those_before() -> None:
    b = TraceBuilder(device=None)

    def forward(at: float, number: int) -> None:
        b.frame("nn.Module: Linear_0", at + 100, 200)
        b.op("aten::linear", at + 100, 190, sequence=number)
        b.memory(at + 150, 5000, 10 * number).memory(at + 160, 300 + number, 10 * number + 1)

    forward(0, 0)
    b.op("autograd::engine::evaluate_function: AddmmBackward0", 400, 150, sequence=0)
    b.memory(450, -5000, 0).memory(460, -300, 1)
    forward(STEP_US, 1)
    [memory] = Rank(b.trace()).memory
    assert memory.peak is not None
    by_bytes = dict(zip(memory.peak.bytes.tolist(), memory.peak.categories.tolist(), strict=True))
    assert {size: CATEGORIES[each] for size, each in by_bytes.items() if size} == {5000: "activations", 301: "unknown"}


def test_what_was_allocated_before_the_recording_is_said_to_be() -> None:
    b = TraceBuilder(device=None).op("aten::mm", 0, 10).memory(1, 512, 7)
    event = b.to_dict()["traceEvents"][-1]
    later = event | {"ts": 2, "args": event["args"] | {"Bytes": -100, "Total Allocated": 912, "Addr": 9}}
    b = TraceBuilder(device=None).op("aten::mm", 0, 10)
    b.event(**(event | {"args": event["args"] | {"Total Allocated": 1012}})).event(**later)
    [memory] = Rank(b.trace()).memory
    assert memory.peak is not None
    summed = dict(
        zip([CATEGORIES[each] for each in memory.peak.categories.tolist()], memory.peak.bytes.tolist(), strict=True)
    )
    assert sorted(memory.peak.bytes.tolist()) == [100, 400, 512]
    assert summed["before_recording"] in (100, 400)


def test_events_that_contradict_their_totals_have_no_peak() -> None:
    b = TraceBuilder(device=None).op("aten::mm", 0, 10).memory(1, 512, 7)
    event = b.to_dict()["traceEvents"][-1]
    b.event(**(event | {"ts": 2, "args": event["args"] | {"Total Allocated": 5}}))
    [memory] = Rank(b.trace()).memory
    assert (memory.is_consistent, memory.peak) == (False, None)
