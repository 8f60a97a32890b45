"""Comparison: the one value that says what became of a program between two recordings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np

from perfdoctor.analysis.match_rows import UNKNOWN_TABLE, ChangeTable, SideRows, match_rows
from perfdoctor.analysis.step_noise import StepDifference, compare_steps
from perfdoctor.analysis.timeline.account import DETAILS
from perfdoctor.comparison.comparability import Reason, common_ops, find_differences, is_compiled
from perfdoctor.comparison.device_comparison import DeviceComparison, compare_devices
from perfdoctor.comparison.match_findings import FindingChange, Promise, check_promises, match_findings
from perfdoctor.comparison.memory_changes import MemoryChange, compare_peaks
from perfdoctor.comparison.recording import Recording
from perfdoctor.frozen_dataclass import frozen_dataclass
from perfdoctor.report.to_plain import to_plain
from perfdoctor.value_limits import Positive, Signed

TABLES = ("places", "kernels", "ops", "modules", "collectives")
# Recordings of one program on two devices may differ in these, and what became of its work can still be said.
_ON_OTHER_DEVICE = {"device", "recorder", "steps", "ranks"}


@frozen_dataclass
class Side:
    """One side of a comparison.

    Attributes:
        paths: Its recordings.
        device: The device; None where not known.
        ranks: The number of ranks of the job.
        steps: Steps in all its recordings.
        mean_ns: The mean step, to which rows and account add up; of the whole recording where it has no steps.
        is_unprofiled: Whether its times are those without the profiler.
    """

    paths: Annotated[tuple[str, ...], ("minItems", 1)]
    device: str | None
    ranks: Positive
    steps: int
    mean_ns: int
    is_unprofiled: bool


@frozen_dataclass
class AccountChange:
    """A part of the account before and after, in ns of the mean step."""

    SCHEMA: ClassVar[tuple[str, ...]] = ("detail", "before_ns", "after_ns", "difference_ns")

    detail: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> Signed:
        """After less before."""
        return self.after_ns - self.before_ns


@frozen_dataclass
class Comparison:
    """Two recordings of a program, or several on each side.

    Attributes:
        version: Of perfdoctor.
        before, after: The sides.
        comparable: Whether the step can be judged; `reasons` say why not.
        reasons: What differs between the sides, and what to do, a sentence each.
        notes: What else a reader should know.
        step: The median step before and after, with its noise.
        account: The mean step by where its time went; empty where one side does not say.
        places, kernels, ops, modules, collectives: The rows that explain the difference of the mean step, which each of
            these tables divides anew.
        memory: The peaks of memory, of the devices whose peak both sides know.
        findings: The findings that were fixed, are new, or still there.
        promises: What was promised for those that went, against what came.
        devices: The two devices, where they are known and differ, and the work is the same; None elsewhere.
        runs_on_gpu: Whether the program runs on a GPU; None where not known.
    """

    SCHEMA: ClassVar[tuple[str, ...]] = (
        *("schema", "version", "before", "after", "comparable", "reasons", "notes", "step", "account"),
        *(*TABLES, "memory", "findings", "promises", "devices"),
    )

    schema: ClassVar[str] = "perfdoctor.compare/1"

    version: str
    before: Side
    after: Side
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]
    step: StepDifference
    account: tuple[AccountChange, ...] = ()
    places: ChangeTable = UNKNOWN_TABLE
    kernels: ChangeTable = UNKNOWN_TABLE
    ops: ChangeTable = UNKNOWN_TABLE
    modules: ChangeTable = UNKNOWN_TABLE
    collectives: ChangeTable = UNKNOWN_TABLE
    memory: tuple[MemoryChange, ...] = ()
    findings: tuple[FindingChange, ...] = ()
    promises: tuple[Promise, ...] = ()
    devices: DeviceComparison | None = None
    runs_on_gpu: bool | None = None

    @property
    def comparable(self) -> bool:
        """Whether the step can be judged."""
        return not self.reasons

    @property
    def has_steps(self) -> bool:
        """Whether both sides have steps."""
        return bool(self.before.steps and self.after.steps)

    def table(self, name: str) -> ChangeTable:
        """One of the tables of changes by its name."""
        table: ChangeTable = getattr(self, name)
        return table

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain data by schema perfdoctor.compare/1: times in int64 ns, None for unknown."""
        plain: dict[str, Any] = to_plain(self)
        return plain


def compare_recordings(
    before: Sequence[Recording], after: Sequence[Recording], version: str, notes: Sequence[str] = ()
) -> Comparison:
    """The comparison of two sides, each of one or more recordings of one program."""
    step = compare_steps([each.steps for each in before], [each.steps for each in after])
    alike_in_steps = len({each.has_steps for each in (*before, *after)}) == 1
    old, new = _side_of(before), _side_of(after)
    tables = {name: _match_table(name, before, after, old, new) for name in TABLES} if alike_in_steps else {}
    old_findings, new_findings = before[0].findings, after[0].findings
    kinds = {each.device_kind for each in (*before, *after)} - {None}
    reasons = find_differences(before, after)
    same_program = {each.aspect for each in reasons} <= _ON_OTHER_DEVICE
    devices = compare_devices(before[0], after[0]) if same_program else None
    # What became of another program's step says nothing of a promise.
    judged = StepDifference(None, None) if reasons else step
    return Comparison(
        version=version,
        before=old,
        after=new,
        reasons=reasons,
        notes=(*notes, *_describe_notes(before, after)),
        step=step,
        account=_compare_accounts(before, after, old, new) if alike_in_steps else (),
        memory=compare_peaks(*(chain.from_iterable(each.peaks for each in side) for side in (before, after))),
        findings=match_findings(old_findings, new_findings),
        promises=() if devices is not None else check_promises(old_findings, new_findings, judged),
        devices=devices,
        runs_on_gpu="gpu" in kinds if kinds else None,
        **tables,
    )


def _side_of(side: Sequence[Recording]) -> Side:
    return Side(
        paths=tuple(each.path for each in side),
        device=next((each.device for each in side if each.device), None),
        ranks=max(each.ranks for each in side),
        steps=sum(each.steps.count for each in side),
        mean_ns=round(float(np.mean([each.mean_ns for each in side]))),
        is_unprofiled=all(each.is_unprofiled for each in side),
    )


def _match_table(
    name: str, before: Sequence[Recording], after: Sequence[Recording], old: Side, new: Side
) -> ChangeTable:
    if not all(name in each.tables for each in (*before, *after)):
        return UNKNOWN_TABLE
    return match_rows(
        name,
        SideRows([each.tables[name] for each in before], old.mean_ns),
        SideRows([each.tables[name] for each in after], new.mean_ns),
    )


def _compare_accounts(
    before: Sequence[Recording], after: Sequence[Recording], old: Side, new: Side
) -> tuple[AccountChange, ...]:
    if not all(each.account_ns for each in (*before, *after)):
        return ()
    columns = (_account_of(before, old.mean_ns), _account_of(after, new.mean_ns))
    rows = (AccountChange(name, *values) for name, *values in zip(DETAILS, *columns, strict=True))
    return tuple(row for row in rows if row.before_ns or row.after_ns)


def _account_of(side: Sequence[Recording], mean_ns: int) -> list[int]:
    """The account of the mean step in whole ns, which add up to it."""
    means = [float(np.mean([each.account_ns.get(name, 0.0) for each in side])) for name in DETAILS]
    until = np.rint(np.cumsum(means)).astype(np.int64)
    until = np.where(until == until[-1], mean_ns, until)
    return [int(ns) for ns in np.diff(until, prepend=0)]


# From this factor between the scales of two recordings on, rows that did not change look as if they had.
_UNLIKE_SCALES = 1.2


def _describe_notes(before: Sequence[Recording], after: Sequence[Recording]) -> list[str]:
    every = (*before, *after)
    notes = list(dict.fromkeys(sentence for each in every for sentence in each.missing))
    if all(each.has_steps for each in every) and not any(each.is_unprofiled for each in every):
        notes.append("the steps ran under the profiler; perfdoctor run times steps without it")
    if any(each.has_varying_shapes for each in every):
        notes.append(
            "the shapes change from step to step: the noise has this in it, and rows of other shapes match less"
        )
    if len({is_compiled(each) for each in every if each.matrix_ops}) > 1:
        notes.append(
            "one side runs compiled code, which calls other ops and hides some: whether model and shapes are the same "
            "is not known, and rows match only where both have the same"
        )
    elif all(each.matrix_ops for each in every) and not common_ops(every):
        notes.append(
            "the sides call no matrix op in common, such as fused ones on one side: whether their shapes are the same "
            "is not known"
        )
    knows_peak = [any(each.peaks for each in side) for side in (before, after)]
    if any(knows_peak) and not all(knows_peak):
        notes.append(
            f"the peak of memory is known {'before' if knows_peak[0] else 'after'} alone: record memory on both sides "
            "(profile_memory=True, or a snapshot)"
        )
    scales = [each.time_scale for each in every]
    if max(scales) > _UNLIKE_SCALES * min(scales):
        notes.append(
            f"the recorded steps are {1 / max(scales):.2g} to {1 / min(scales):.2g} times as long as those without the "
            "profiler, to which account and rows are scaled: rows that did not change may look as if they had; record "
            "when the machine is quiet, or more steps (perfdoctor run --timing 20)"
        )
    ranks = [each.rank for each in (before[0], after[0])]
    if None not in ranks:
        which = f"rank {ranks[0]}" if ranks[0] == ranks[1] else f"rank {ranks[0]} before and rank {ranks[1]} after"
        notes.append(f"steps, account and rows are those of the rank with the longest mean step: {which}")
    return notes
