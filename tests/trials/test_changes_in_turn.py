"""Every change where it applies and where it does not: each case is a fork of one process that has imported torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

# Applies a change as the recorder of a trial does, runs the lines of a case, and answers with what came of both.
DRIVER = """
import json, os, sys, traceback, warnings
from perfdoctor.capture.inject._perfdoctor_inject.module_calls import ModuleCalls
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import TrialChange, TrialOptions
from perfdoctor.capture.inject._perfdoctor_inject.trial import TrialProgram
import torch
import torch._dynamo  # the first optimizer would import it, in each fork anew
from torch import nn

cases, answers = json.loads(sys.stdin.read()), []

def run(case):
    options = TrialOptions(0, (TrialChange(case["change"], case["file"], case["class_name"], case["setting"]),))
    program = TrialProgram(options, ModuleCalls(lambda: True))
    os.environ.update(case["environment"])
    program.environment = dict(os.environ)
    program.start()
    border = {"steps": 0}
    def step():
        border["steps"] += 1
        program.begin_step(border["steps"])
    names = {"step": step, "program": program, "torch": torch, "nn": nn, "result": None}
    lines = compile(case["source"], "/case.py", "exec")
    exec(lines, names)
    return {**program.records[case["change"]].to_dict(), "result": names["result"]}

for case in cases:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answer = run(case)
        except BaseException:
            answer = {"failed": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answers.append(json.loads(file.read() or b"{}"))
    os.waitpid(pid, 0)
print("ANSWERS" + json.dumps(answers))
"""

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plugin" / "perfdoctor_example" / "any_order.py"


@dataclass
class Case:
    """What a program does, how often the change is met in it, and what `result` is afterwards."""

    name: str
    change: str
    setting: str
    source: str
    met: int = 0
    result: Any = None
    line: str = ""  # a part of the line at which it is met
    environment: tuple[tuple[str, str], ...] = ()
    refused: str = ""  # a part of why it does not fit


def read_cases() -> Iterator[Case]:
    """Those of changes_in_turn.txt, which says how they are written."""
    beginnings: dict[str, str] = {}
    text = Path(__file__).with_name("changes_in_turn.txt").read_text(encoding="utf-8")
    text = re.sub(r"^# .*\n", "", text, flags=re.MULTILINE)
    for each in text.split("=== ")[1:]:
        head, source, fields = re.fullmatch(r"(.+)\n((?:(?!\+\+\+ ).*\n)*)(?:\+\+\+ (.+)\n)?", each).groups("")
        change, is_case, name = head.partition(": ")
        source = re.sub(r"<<< (.+)\n", lambda found: "".join(map(beginnings.get, found[1].split())), source)
        if is_case:
            yield Case(name, *change.split(), source, **eval(f"dict({fields})"))
        else:
            beginnings[head] = source


CASES = list(read_cases())


def run_cases(cases: list[Case], environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The answer to each case, by its name."""
    points = {each.name: each for each in entry_points(group="perfdoctor.changes")}
    questions = []
    for case in cases:
        file, class_name = str(EXAMPLE), "AnyOrder"
        if case.change != "any-order":
            module, _, class_name = points[case.change].value.partition(":")
            spec = find_spec(module)
            assert spec is not None
            file = str(spec.origin)
        place = {"file": file, "class_name": class_name, "environment": dict(case.environment)}
        questions.append({**asdict(case), **place})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps(questions),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "ANSWERS" in done.stdout, done.stderr
    answers = json.loads(done.stdout.partition("ANSWERS")[2])
    return {case.name: answer for case, answer in zip(cases, answers, strict=True)}


def describe_difference(case: Case, answer: dict[str, Any]) -> str:
    """What an answer has that the case does not expect; empty where all is as expected."""
    if "failed" in answer or answer["error"]:
        return str(answer.get("failed") or answer["error"])
    if case.refused not in answer["refused"] or bool(case.refused) != bool(answer["refused"]):
        return f"refused because {answer['refused']!r}"
    if (answer["met"], answer["result"]) != (case.met, case.result):
        return f"met {answer['met']} with {answer['result']}, not {case.met} with {case.result}"
    lines = case.source.splitlines()
    places = [place for place in answer["locations"] if Path(place["file"]).name == "case.py"]
    is_at_line = any(case.line in lines[place["line"] - 1] for place in places)
    return "" if is_at_line or not case.line else f"met at {places}, not at {case.line}"


# One test: workers of pytest that share the cases would each import torch and run all of them.
@pytest.mark.skipif(not hasattr(os, "fork"), reason="cases are forks of one process")
def test_changes_apply_where_they_fit_and_nowhere_else() -> None:
    pytest.importorskip("torch")
    # MKL heeds its own variable first, which a command that ran in this process may have left.
    answers = run_cases(CASES, {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    found = [(case.change, case.name, describe_difference(case, answers[case.name])) for case in CASES]
    assert not [each for each in found if each[2]]


def test_each_change_has_cases_that_fire_and_cases_that_stay_quiet() -> None:
    own = {each.name for each in entry_points(group="perfdoctor.changes") if each.value.startswith("perfdoctor.")}
    assert {case.change for case in CASES if case.met} == own | {"any-order"}
    assert {case.change for case in CASES if not case.met} == own | {"any-order"}
