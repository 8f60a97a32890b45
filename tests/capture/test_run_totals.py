"""What the recorder adds up of the steps: whether stacks took so long that one step with them is enough."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject.run_totals import RunTotals
from perfdoctor.capture.inject._perfdoctor_inject.step_meter import StepWork

MS = 1_000_000


@pytest.mark.parametrize(
    ("base", "evidence", "expensive"),
    [
        ((10, 0), (60, 0), True),
        ((10, None), (60, None), True),
        ((70, 60), (140, 80), True),
        ((10, 0), (25, 0), False),
        ((100, 0), (190, 0), False),
        ((70, 60), (140, 120), False),  # another program had the core for longer
    ],
)
def test_waits_for_a_core_are_no_cost_of_stacks(
    base: tuple[int, int | None], evidence: tuple[int, int | None], expensive: bool
) -> None:
    totals = RunTotals()
    for window, (dur_ms, queued_ms) in [("base", base)] * 3 + [("evidence", evidence)]:
        work = StepWork(queued_ns=None if queued_ms is None else queued_ms * MS)
        totals.add_step(window, window, dur_ms * MS, 0, work)
    assert totals.stacks_are_expensive() is expensive


@pytest.mark.parametrize(("cpu_ms", "expensive"), [(20, False), (900, True), (None, True)])
def test_waits_for_another_rank_are_no_cost_of_stacks(cpu_ms: int | None, expensive: bool) -> None:
    totals = RunTotals()
    for window, dur_ms, own_ms in (("base", 80, 10), ("evidence", 1000, cpu_ms)):
        totals.add_step(window, window, dur_ms * MS, 0, StepWork(cpu_ns=None if own_ms is None else own_ms * MS))
    assert totals.stacks_are_expensive() is expensive


def test_without_a_base_window_nothing_is_compared() -> None:
    totals = RunTotals()
    totals.add_step("evidence", "evidence", 500 * MS, 0, StepWork())
    assert not totals.stacks_are_expensive()
