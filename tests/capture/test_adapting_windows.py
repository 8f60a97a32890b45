"""Windows that adapt to programs of few steps, of growing steps, and to those that profile, fork or search."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch")

STANDARD = {"skip": 5, "base": 10, "warmup": 2, "timing": 8, "evidence": 3}
BY_HAND = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = data[:4]
def train(steps):
    for _ in range(steps):
        train_step((x, y), optimizer)
"""


@pytest.mark.parametrize(("steps", "timing"), [(6, 2), (18, 4)])
def test_few_steps_give_windows(launcher: Any, capture_kit: dict[str, Any], steps: int, timing: int) -> None:
    recorded = launcher.record(capture_kit["TRAIN"].replace("STEPS = 14", f"STEPS = {steps}"), **STANDARD)
    assert recorded.exit_code == 0
    assert len(recorded.annotated_steps("timing")) == timing
    assert recorded.annotated_steps("evidence")
    facts = recorded.facts()
    assert len(facts["timing_step_ns"]) == len(facts["timing_cpu_ns"]) == timing
    assert len(facts["base_step_ns"]) == len(facts["base_backwards"]) >= 1
    assert facts["windows"]["timing"]["first_step"] == recorded.annotated_steps("timing")[0]
    assert f"the program made {steps} steps" in recorded.notes


def test_three_steps_give_one_true_sentence(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"].replace("STEPS = 14", "STEPS = 3"), **STANDARD)
    assert recorded.exit_code == 0
    assert recorded.notes == (
        "the program ended after 3 steps, before a whole step was recorded: let it run for six steps and more."
    )


def test_a_longer_run_replaces_the_early_windows(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["TRAIN"].replace("STEPS = 14", "STEPS = 60"), **STANDARD)
    facts = recorded.facts()
    assert recorded.notes == ""
    assert [len(facts[f"{window}_step_ns"]) for window in ("base", "timing", "evidence")] == [10, 8, 3]
    assert recorded.annotated_steps("timing") == list(range(30, 38))
    steps = recorded.steps()
    assert facts["timing_step_ns"] == [step["dur_ns"] for step in steps[30:38]]
    assert facts["base_step_ns"] == [step["dur_ns"] for step in steps[18:28]]
    assert [step["window"] for step in steps[:2]] == ["skip", "skip"]
    assert facts["run"]["steps"] == 60
    assert facts["run"]["unrecorded"] == []


def test_a_run_that_changes_is_recorded_once_more(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + BY_HAND
        + """
train(60)
until = time.monotonic() + 7
while time.monotonic() < until:
    train(1)
    time.sleep(0.02)
train(60)
"""
    )
    recorded = launcher.record(source, **STANDARD)
    assert recorded.exit_code == 0, recorded.stderr
    facts = recorded.facts()
    assert facts["windows"]["timing"]["first_step"] > 60
    assert min(facts["base_step_ns"]) > 20_000_000
    early = json.loads((recorded.out / "rank0/early_facts.json").read_text())
    assert early["windows"]["timing"]["first_step"] < 60, "what was recorded first is kept beside it"
    assert max(early["base_step_ns"]) < 20_000_000
    assert {"early_timing.json.gz", "early_evidence.json.gz"} < recorded.files()


def test_steps_that_grow_slowly_are_recorded_once_more(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + BY_HAND
        + """
train(60)
begun = time.monotonic()
while time.monotonic() < begun + 14:
    train(1)
    time.sleep(0.02 + 0.0006 * (time.monotonic() - begun))
"""
    )
    recorded = launcher.record(source, **STANDARD)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.facts()["windows"]["timing"]["first_step"] > 60
    assert {"early_timing.json.gz", "early_evidence.json.gz", "early_facts.json"} < recorded.files()


def test_each_step_says_what_it_contains(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["TRAIN"]
        + """
    if number % 7 == 6:
        torch.save(model.state_dict(), "model.pt")
        model.eval()
        with torch.no_grad():
            for x, y in loader: model(x)
        model.train()
"""
    )
    recorded = launcher.record(source)
    steps = recorded.steps()
    contents = [step.get("contains", []) for step in steps]
    assert [number for number, each in enumerate(contents) if "save" in each] == [6, 13]
    assert [number for number, each in enumerate(contents) if "evaluation" in each] == [7]
    assert [step["batches"] for step in steps[:8]] == [1] * 7 + [15]
    assert {(step["backwards"], step["optimizer_steps"]) for step in steps} == {(1, 1)}
    assert all(0 < step["cpu_ns"] <= step["process_cpu_ns"] * 1.01 + 1e5 for step in steps)
    assert all(step["preempted"] >= 0 for step in steps)
    assert all(step["queued_ns"] >= 0 for step in steps)


def test_micro_batches_are_counted_where_they_grow(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"].replace("STEPS = 14", "STEPS = 400")
        + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(DataLoader(data, batch_size=4))
for step in range(48):
    for _ in range(1 + step // 8):
        x, y = next(batches)
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    recorded = launcher.record(source, **STANDARD)
    facts = recorded.facts()
    assert [step["backwards"] for step in recorded.steps()[:17]] == [1] * 8 + [2] * 8 + [3]
    assert len(facts["base_backwards"]) == len(facts["base_step_ns"])
    assert len(set(facts["base_backwards"])) <= 2


def test_a_profiler_of_the_program_leaves_one_set_of_steps(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["TRAIN"]
        .replace("STEPS = 14", "STEPS = 80")
        .replace(
            "for number",
            "own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=50, warmup=1, active=3, "
            "repeat=1))\nown.start()\nfor number",
        )
    )
    recorded = launcher.record(source + "    own.step()\nown.stop()\nown.export_chrome_trace('own.json')\n", **STANDARD)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.annotated_steps("timing") == list(range(30, 38))
    names = recorded.names("timing")
    assert sum(name.startswith("ProfilerStep#") for name in names) == 8
    own = (launcher.folder / "own.json").read_text()
    assert own.count("ProfilerStep#") >= 3


def test_a_profiler_that_runs_all_the_time_is_named(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["TRAIN"].replace("for number", "own = torch.profiler.profile()\nown.start()\nfor number")
    recorded = launcher.record(source + "own.stop()\n", **STANDARD)
    assert recorded.exit_code == 0, recorded.stderr
    assert "its 14 steps took" in recorded.notes
    assert "The program's own profiler ran in" in recorded.facts()["run"]["unrecorded"][0]


def test_trainings_that_were_not_recorded_are_named(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = (
        capture_kit["PRELUDE"]
        + BY_HAND
        + """
train(50)
child = os.fork()
if not child:
    train(10)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(10)
"""
    )
    recorded = launcher.record(source, **STANDARD)
    assert recorded.exit_code == 0, recorded.stderr
    facts = recorded.facts()
    assert facts["run"]["steps"] >= 57
    said = " ".join(facts["run"]["unrecorded"])
    assert "no torch DataLoader" in said
    assert "New optimizers were made once" in said
    assert "Another process of the program trained as the same rank" in said
