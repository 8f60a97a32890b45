"""Each form fits a program that is written the other way, computes the same there, and is refused where it does not."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import perfdoctor
from perfdoctor.capture import launch
from perfdoctor.capture.capture_options import CaptureOptions
from perfdoctor.capture.inject._perfdoctor_inject import call_records
from perfdoctor.capture.inject._perfdoctor_inject.call_records import CallRecords
from perfdoctor.capture.inject._perfdoctor_inject.needed_rows import NeededRows
from perfdoctor.capture.inject._perfdoctor_inject.source_lines import SourceLineMode
from perfdoctor.capture.inject._perfdoctor_inject.value_looks import UnchangedResults
from perfdoctor.capture.inject._perfdoctor_inject.value_numbers import ValueNumbers
from perfdoctor.errors import InputError
from perfdoctor.forms.match_forms import Match, find_matches
from perfdoctor.forms.measure_forms import Case, measure_capture, run_job, to_job
from perfdoctor.forms.process.measure_cases import measure_case
from perfdoctor.forms.read_forms import read_forms
from perfdoctor.forms.recorded_calls import RecordedCalls, read_calls
from tests.forms.form_programs import PROGRAMS

# What is measured on a GPU alone.
_ON_GPU = {"float16", "tf32"}


def record(step: Callable[[], Any], folder: Path) -> RecordedCalls:
    """The calls of a step, as they come out of the file."""
    calls = CallRecords()
    calls.start()
    with pytest.MonkeyPatch.context() as patch, SourceLineMode(UnchangedResults(), NeededRows(), calls, ValueNumbers()):
        patch.setattr(call_records, "MIN_CALL_NS", 0)  # so that the numbers of all tensors are looked at
        step()
    path = folder / "calls.json"
    path.write_text(json.dumps(calls.to_dict()))
    found = read_calls(path)
    assert found is not None
    return found


def measure_match(recorded: RecordedCalls, match: Match) -> dict[str, Any]:
    plain = json.loads(json.dumps(to_job(recorded, [Case(match, (1,))], 1.0)))["cases"][0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in the process: that sparse tensors are new is no fault of the program
        found: dict[str, Any] = measure_case(plain, "cpu", time.monotonic())
    return found


def test_each_form_has_a_program() -> None:
    assert set(PROGRAMS) == {form.id for form in read_forms()} - _ON_GPU


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_form_computes_the_same_as_the_program(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    recorded = record(PROGRAMS[name](1), tmp_path)
    matches = [match for match in find_matches(recorded) if match.form.id == name]
    assert matches
    answer = measure_match(recorded, matches[0])
    assert answer["now_ns"] > 0
    assert answer["form_ns"] > 0
    assert answer["write"]


@pytest.mark.process
def test_a_capture_is_measured_and_the_report_names_the_form(tmp_path: Path) -> None:
    script = tmp_path / "contract.py"
    script.write_text(
        "import torch\n"
        "q, k, v = (torch.nn.Parameter(torch.randn(2, 2, 192, 8)) for _ in range(3))\n"
        "optimizer = torch.optim.SGD([q, k, v], 0.01)\n"
        "for _ in range(45):\n"
        "    optimizer.zero_grad()\n"
        "    out = torch.einsum('bhnd,bhmd,bhme->bhne', q, k, v)\n"
        "    out.square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    launch.run(launch.parse_target([str(script)]), CaptureOptions(out=tmp_path / "capture"), log=tmp_path / "log")
    rows = measure_capture(tmp_path / "capture", 0, 5.0)
    assert {row["form"] for row in rows} >= {"einsum_order"}
    [found] = [each for each in perfdoctor.analyze(tmp_path / "capture").findings if each.rule == "PD212"]
    assert found.location is not None
    assert found.location.line == 6
    assert found.saving.basis == "measured"
    assert found.fix is not None
    assert found.fix.startswith("out = torch.einsum('bhnd,bhde->bhne', q, torch.einsum(")
    assert [each.id for each in found.actions] == ["cheaper-form"]


@pytest.mark.process
def test_a_python_that_is_none_costs_a_sentence() -> None:
    with pytest.raises(InputError, match="cannot be started"):
        list(run_job({"cases": [], "budget_s": 1.0}, "/no/such/python", 1.0))
