"""What `perfdoctor run` timed of each step, by facts.json and steps.jsonl, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from perfdoctor.facts.captured import WindowSteps
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.trace.arrays import BoolArray, Int64Array

# Ratios and sums of times stay within int64: 2^53 ns are 104 days.
_END_OF_COUNTS = 1 << 53
# Windows without a profiler, after the warm-up of the program.
_UNPROFILED = ("base", "after")
_MAX_MARKS = 200
# Among what a step contains: it is no work that other steps do not have.
_EPOCH = "epoch"


def yes_or_no(setting: object) -> str | None:
    """A captured setting as the value of evidence: "yes" or "no"; None where it was not captured."""
    return None if setting is None else "yes" if setting else "no"


@frozen_dataclass(eq=False, kw_only=True)
class StepTimes:
    """Steps that a capture timed, in their order, and what each of them cost and did.

    What a capture did not record of every step is None.

    Attributes:
        dur_ns: Duration of each step.
        cpu_ns: CPU time of the training thread in each step.
        process_cpu_ns: CPU time of all threads of the process.
        preempted: Involuntary context switches of the training thread: how often others got its core.
        queued_ns: How long the training thread could have run and had no core.
        system_cpu_ns: CPU time that the system spent for all threads; it counts by ticks: right on average only.
        minor_faults: Minor page faults of the process.
        batches: Batches that loaders returned.
        backwards: Backward passes: of gradient accumulation the micro-batches.
        gc_ns: Time in which garbage was collected.
        host_call_ns: Time in calls that wait for a disk or copy models.
        samples: Samples in these batches.
    """

    dur_ns: Int64Array
    cpu_ns: Int64Array | None = None
    process_cpu_ns: Int64Array | None = None
    preempted: Int64Array | None = None
    queued_ns: Int64Array | None = None
    system_cpu_ns: Int64Array | None = None
    minor_faults: Int64Array | None = None
    batches: Int64Array | None = None
    backwards: Int64Array | None = None
    gc_ns: Int64Array | None = None
    host_call_ns: Int64Array | None = None
    samples: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.dur_ns)


# Columns of `StepTimes` beside the duration, as they are called in steps.jsonl and, behind the window, in facts.json.
_STEP_COLUMNS = (
    "cpu_ns",
    "process_cpu_ns",
    "preempted",
    "queued_ns",
    "system_cpu_ns",
    "minor_faults",
    "batches",
    "backwards",
    "gc_ns",
    "host_call_ns",
    "samples",
)


@frozen_dataclass(eq=False, kw_only=True)
class RunSteps(StepTimes):
    """The steps of a whole run that were timed without a profiler, in their order.

    Attributes:
        number: Number of each step, counted from the program's first one.
        loader_wait_ns: How long the loop waited in DataLoader.__next__ during each step.
        is_after: Whether each step came after the recorded windows, not right before them.
        contains: What else was seen in each step, such as "save" or "evaluation".
        held_bytes: What the program holds of the host's memory at the end of each step, -1 where nobody looked.
        allocated_bytes: The same of what the allocator has handed out on the current GPU.
        begins_epoch: Whether each step has the first batch of a training loader that was gone through before; None
            where no step is known to.
    """

    number: Int64Array
    loader_wait_ns: Int64Array
    is_after: BoolArray
    contains: tuple[frozenset[str], ...]
    held_bytes: Int64Array | None = None
    allocated_bytes: Int64Array | None = None
    begins_epoch: BoolArray | None = None

    def which_contain(self, content: str) -> BoolArray:
        """Of each step whether this was seen in it."""
        return np.array([content in each for each in self.contains], bool)

    def numbers_of(self, which: BoolArray | Int64Array) -> tuple[int, ...]:
        """The numbers of some steps, to be marked on a chart: of very many 200, evenly spread."""
        numbers = self.number[which]
        chosen = np.unique(np.linspace(0, max(len(numbers) - 1, 0), _MAX_MARKS).astype(np.int64))
        return tuple(numbers[chosen].tolist()) if len(numbers) else ()


def step_times_of(window: WindowSteps) -> StepTimes | None:
    """The steps of one window with what each of them cost and did; None where no step was timed."""
    if not window.step_ns or not all(map(_is_count, window.step_ns)) or not all(window.step_ns):
        return None
    columns = {name: _parse_column(getattr(window, name), len(window.step_ns)) for name in _STEP_COLUMNS}
    return StepTimes(dur_ns=np.array(window.step_ns, np.int64), **columns)


def _parse_column(values: Sequence[object], count: int) -> Int64Array | None:
    """A list of numbers, one for each of `count` steps; None where a step has none."""
    if len(values) != count or not all(map(_is_count, values)):
        return None
    return np.array(values, np.int64)


def _parse_column_with_gaps(values: Sequence[object]) -> Int64Array | None:
    """A list of numbers, -1 for what is none; None where there is no number."""
    known = [value if type(value) is int and _is_count(value) else -1 for value in values]
    return np.array(known, np.int64) if max(known, default=-1) >= 0 else None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _END_OF_COUNTS


def parse_run_steps(text: bytes) -> RunSteps | None:
    """The unprofiled steps in the text of a steps.jsonl; None where it has none.

    A line that is no step, such as the incomplete last one of a killed program, is ignored.
    """
    rows = [row for row in map(_parse_unprofiled_step, text.splitlines()) if row is not None]
    if not rows:
        return None
    columns = {name: _parse_column([row.get(name) for row in rows], len(rows)) for name in _STEP_COLUMNS}
    for name in ("held_bytes", "allocated_bytes"):
        columns[name] = _parse_column_with_gaps([row.get(name) for row in rows])
    number, dur_ns, wait_ns = (
        np.array([row[name] for row in rows], np.int64) for name in ("step", "dur_ns", "loader_wait_ns")
    )
    contents = [_parse_contents(row.get("contains")) for row in rows]
    epochs = np.array([_EPOCH in each for each in contents])
    return RunSteps(
        number=number,
        dur_ns=dur_ns,
        loader_wait_ns=wait_ns,
        is_after=np.array([row["window"] == "after" for row in rows]),
        contains=tuple(each - {_EPOCH} for each in contents),
        begins_epoch=epochs if epochs.any() else None,
        **columns,
    )


def _parse_contents(contents: object) -> frozenset[str]:
    return frozenset(each for each in contents if isinstance(each, str)) if isinstance(contents, list) else frozenset()


def _parse_unprofiled_step(line: bytes) -> Mapping[str, Any] | None:
    """The step in a line; None where it is no step of an unprofiled window."""
    try:
        step = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(step, dict) or step.get("window") not in _UNPROFILED:
        return None
    if not all(_is_count(step.get(name)) for name in ("step", "dur_ns", "loader_wait_ns")):
        return None
    return step
