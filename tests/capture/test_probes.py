"""Probes of the recorder: one that fails takes itself out with one note, and disturbs nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from perfdoctor.capture.inject._perfdoctor_inject import checkpoint_calls, optimizer_records  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.probes import Facts, Once, Probe, Probes  # noqa: E402
from perfdoctor.capture.session import profile  # noqa: E402


def test_facts_come_in_order_and_those_that_are_read_once_come_late() -> None:
    read, probes = iter([1, 2]), Probes(pytest.fail)
    probes.add(Once("late", lambda: next(read)), Facts("now", lambda: 0))
    assert list(probes.facts().items()) == [("late", None), ("now", 0)]
    probes.each(Probe.start, 3)
    probes.each(Probe.stop, 4)
    assert probes.facts() == {"late": 1, "now": 0}


def test_what_is_no_probes_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Probes(pytest.fail).call(lambda: 1 / 0)


def test_probes_that_fail_leave_program_and_recording_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("unlike those known")

    monkeypatch.setattr(checkpoint_calls, "statistics", None)  # in its facts
    monkeypatch.setattr(optimizer_records, "describe_optimizer", fail)  # in a hook
    weight = torch.nn.Parameter(torch.ones(2))
    with profile(tmp_path / "out", skip=0, base=1, warmup=0, timing=2, evidence=0) as session:
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(4):
            with session.step():
                optimizer.zero_grad()
                weight.sum().backward()
                optimizer.step()
    facts = json.loads((session.folder / "rank0" / "facts.json").read_text())
    assert weight.tolist() == pytest.approx([0.6, 0.6])
    assert (facts["exit"], facts["windows"]["timing"]["complete"]) == ("session", True)
    assert sorted(each.split(":")[0] for each in facts["notes"]) == [
        "CheckpointCalls is not recorded",
        "OptimizerRecords is not recorded",
    ]
    assert not {"checkpointing", "optimizers"} & facts.keys()
    assert facts["amp"]["scaled"] == 0
