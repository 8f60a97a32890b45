"""How many steps each run makes: enough to be timed, no more than the program makes, the same ones in every run."""

from __future__ import annotations

import math
import statistics

from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.errors import InputError
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.frozen_dataclass import frozen_dataclass

# So many steps are timed, or more where they take less time than this.
USUAL_TIMED_STEPS = 10
TIMED_NS = 2_000_000_000
MAX_TIMED_STEPS = 1000
# Of fewer steps too many are the first ones, in which memory and kernels are set up.
MIN_STEPS = 6
MIN_TIMED_STEPS = 4


@frozen_dataclass
class StepCounts:
    """How many steps are left alone at the start of each run, and how many are timed after them."""

    skip: int = CaptureOptions().skip
    base: int = USUAL_TIMED_STEPS


def count_steps(step_ns: float | None, steps_made: int | None, skip: int | None, base: int | None) -> StepCounts:
    """The steps of each run.

    Args:
        step_ns: How long a step takes; None where it is not known yet.
        steps_made: How many steps the program makes; None where it makes as many as are wanted, or it is not known.
        skip: How many steps the user wants left alone; None chooses.
        base: How many the user wants timed; None chooses.

    Raises:
        InputError: The program makes too few.
    """
    if steps_made is not None and steps_made < MIN_STEPS:
        raise InputError(
            f"the program makes {steps_made} step{'s' * (steps_made != 1)}, and a trial needs {MIN_STEPS}: "
            "let it run longer (more data, more epochs)."
        )
    counts = StepCounts()
    skip_steps = counts.skip if skip is None else skip
    wanted = counts.base if not step_ns else math.ceil(TIMED_NS / step_ns)
    base_steps = min(max(wanted, USUAL_TIMED_STEPS), MAX_TIMED_STEPS) if base is None else base
    if steps_made is not None and skip_steps + base_steps > steps_made:
        if skip is None:
            skip_steps = min(skip_steps, steps_made // 4)
        base_steps = steps_made - skip_steps
    if base_steps < min(MIN_TIMED_STEPS, base or MIN_TIMED_STEPS):
        raise InputError(
            f"the program makes {steps_made} steps, so that none is left to be timed after the first {skip_steps}: "
            "give a smaller --skip, or let it run longer."
        )
    return StepCounts(skip_steps, base_steps)


def read_step_counts(facts: CapturedFacts) -> tuple[float | None, int | None]:
    """The step without the profiler, and how many steps the program makes, by the facts of a recording.

    Returns:
        The median step in ns, and the number of steps; the latter None where the recording ended the program.
    """
    base_ns = facts.base.timed_ns
    ended_itself = facts.exit not in (None, "stopped", "running")
    return (statistics.median(base_ns) if base_ns else None, facts.steps_seen if ended_itself else None)
