"""What each allocation is for, by when and where it was made and freed; what nothing shows is unknown.

A pass is a run of events of one phase::

    phase   forward forward  backward backward  optimizer  forward
    pass    0       0        1        1         2          3
"""

from __future__ import annotations

import numpy as np

from perfdoctor.memory.allocations import Allocations
from perfdoctor.memory.evidence import BACKWARD, FORWARD, OPTIMIZER, Evidence, Phases
from perfdoctor.trace.arrays import NONE, BoolArray, Int8Array, Int64Array

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "temporaries",
    "inputs",
    "collectives",
    "before_recording",
    "unknown",
)
(
    PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, TEMPORARIES, INPUTS, COLLECTIVES, BEFORE_RECORDING, UNKNOWN
) = range(len(CATEGORIES))  # fmt: skip


def categorize(
    allocations: Allocations, which: Int64Array, phases: Phases, evidence: Evidence, released: BoolArray
) -> Int8Array:
    """For each of some allocations an index into `CATEGORIES`.

    * parameters: made while a model is built or moved, and never freed;
    * gradients: made in a backward pass, and alive after its end;
    * optimizer state: made in an optimizer's step, and alive after its end;
    * activations: made in a forward pass and freed in a backward pass, or by the nodes that would have run in one; or
      made by a module, or by an op that made such a node, and alive when the next backward pass begins;
    * temporaries: freed in the pass in which they were made;
    * inputs: made by a DataLoader, or by a copy to the device outside of the model;
    * collectives: made in a collective, or by what prepares one.

    Args:
        allocations: The allocations.
        which: The places of those that are asked for.
        phases: The phase of each event, `allocations.rows`.
        evidence: Where each of those was made; what it says of others than recorded ones is not used.
        released: Whether a node of a backward pass freed each of those.
    """
    count = len(allocations.rows)
    begins, ends = allocations.begins[which], allocations.ends[which]
    is_recorded, is_freed = begins >= 0, ends < count
    if not count:
        return np.full(len(which), BEFORE_RECORDING, np.int8)
    number, last_of_pass = _passes(phases)
    # Of what is from before the recording nothing below is used; what is not freed ends behind the last event.
    made_in, freed_in = number[begins], np.append(number, NONE)[np.minimum(ends, count)]
    phase, phase_at_end = phases.phase[begins], np.append(phases.phase, NONE)[np.minimum(ends, count)]
    forward, backward, stepping = (phase == each for each in (FORWARD, BACKWARD, OPTIMIZER))
    outlives_pass, is_last_pass = ends > last_of_pass[made_in], made_in == number[-1]
    alive_in_backward = _next_backward(phases, number)[made_in] < ends
    # The first that holds counts.
    rules: list[tuple[int, BoolArray]] = [
        (BEFORE_RECORDING, ~is_recorded),
        (COLLECTIVES, evidence.communicates),
        (PARAMETERS, forward & evidence.builds_model & ~is_freed),
        (INPUTS, forward & evidence.copies_in),
        (GRADIENTS, backward & outlives_pass & (evidence.accumulates | ~is_last_pass)),
        (TEMPORARIES, backward & is_freed),
        (TEMPORARIES, stepping & (made_in == freed_in)),
        (OPTIMIZER_STATE, stepping & ~is_last_pass),
        (ACTIVATIONS, forward & ((phase_at_end == BACKWARD) | released)),
        (ACTIVATIONS, forward & evidence.in_module & alive_in_backward),
        (TEMPORARIES, forward & (made_in == freed_in)),
    ]
    chosen = np.select([holds for _, holds in rules], [category for category, _ in rules], UNKNOWN)
    return chosen.astype(np.int8)


def is_cut_off(allocations: Allocations, which: Int64Array, phases: Phases) -> BoolArray:
    """Which of some allocations the last forward pass made and nobody freed, where no backward pass is behind it."""
    if not len(allocations.rows):
        return np.zeros(len(which), bool)
    begins = allocations.begins[which]
    backward = np.flatnonzero(phases.phase == BACKWARD)
    last = backward[-1] if len(backward) else -1
    result: BoolArray = (
        (begins > last) & (phases.phase[begins] == FORWARD) & (allocations.ends[which] == len(allocations.rows))
    )
    return result


def _passes(phases: Phases) -> tuple[Int64Array, Int64Array]:
    """The number of the pass of each event, and of each pass its last event that says so itself."""
    number = np.concatenate(([0], np.cumsum(np.diff(phases.phase) != 0))).astype(np.int64)
    last = np.zeros(int(number[-1]) + 1, np.int64)
    own = np.flatnonzero(phases.is_sure)
    np.maximum.at(last, number[own], own)
    return number, last


def _next_backward(phases: Phases, number: Int64Array) -> Int64Array:
    """For each pass the first event of the next backward pass; more than any event where there is none."""
    never = len(number) + 1
    first = np.searchsorted(number, np.arange(int(number[-1]) + 1))
    begins = np.where(phases.phase[first] == BACKWARD, first, never)
    result: Int64Array = np.minimum.accumulate(np.append(begins[1:], never)[::-1])[::-1].astype(np.int64)
    return result
