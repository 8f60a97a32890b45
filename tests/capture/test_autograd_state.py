"""Autograd's state and switches for debugging, in programs that were really started."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

# Anomaly detection in a block, a check of gradients, and a list and a sum of losses with their graphs.
DEBUGGED = """
import torch.autograd.profiler
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses, running = [], 0.0
def fit():
    global running
    with torch.autograd.set_detect_anomaly(True):  # on
        for batch in DataLoader(data, batch_size=4):
            loss = train_step(batch, optimizer)
            losses.append(loss)
            running = running + loss
            torch.autograd.gradcheck(lambda x: x * x, torch.ones(2, dtype=torch.double, requires_grad=True))  # check
fit()
print("loss", losses[-1].item(), float(running), torch.is_anomaly_enabled())
"""

FAILING = """
import warnings
warnings.simplefilter("ignore")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.autograd.set_detect_anomaly(True)
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    optimizer.zero_grad()
    loss = model(x).sum().sqrt() * float("nan")
    loss.backward()
"""

# The model is called in training and in evaluation: its own lines are the same.
EVALUATING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.use_deterministic_algorithms(True)  # deterministic
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
    model.eval()
    seen = model(batch[0]).argmax(1)  # evaluated
    model.train()
print("seen", seen.tolist(), nn.Module.__call__.__module__)
"""

# A metric that calls the model again with the batch of the loss, whose weights have not changed.
AGAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    seen = model(x).argmax(1)  # again
    optimizer.step()
print("seen", seen.tolist())
"""

UNCHANGED = """
grid = torch.linspace(0, 1, 500)[:, None]
for x, y in DataLoader(data, batch_size=4):
    basis = torch.exp(grid - grid.T)  # unchanged
    noise = torch.exp(torch.rand(500, 500))
    noise = noise @ torch.eye(500)  # zeros
    print("seen", (model(x).sum() + (basis * noise).sum()).isfinite().item())
"""

# Tensors without versions, in a block and in a decorated function.
INFERENCE = """
@torch.inference_mode()
def predict(x):
    return model(x).argmax(1)
for x, _ in DataLoader(data, batch_size=4):
    seen = predict(x * 2)
with torch.inference_mode():
    for x, _ in DataLoader(data, batch_size=4):
        seen = model(model(x + 1) @ torch.ones_like(model(x)).T @ x)
print("seen", seen.sum().item())
"""


def line_of(source: str, mark: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith(f"# {mark}"))


@pytest.fixture(scope="module")
def debugged(launcher: Any, capture_kit: dict[str, Any]) -> tuple[str, Any, Any]:
    """A program with everything on, plain and recorded."""
    source = capture_kit["PRELUDE"] + DEBUGGED
    path = launcher.write(source, "debugged.py")
    return source, launcher.run_plain(path.name), launcher.run(path.name)


def test_switches_are_noted_with_their_lines(debugged: tuple[str, Any, Any]) -> None:
    source, plain, recorded = debugged
    assert recorded.exit_code == 0
    assert recorded.stdout == plain.stdout
    switches = {each["switch"]: each for each in recorded.facts()["debug_switches"]}
    assert set(switches) == {"anomaly detection", "gradcheck"}
    for name, mark in (("anomaly detection", "on"), ("gradcheck", "check")):
        assert switches[name]["location"]["line"] == line_of(source, mark)
        assert switches[name]["steps"] == switches[name]["of_steps"] == 14
        assert switches[name]["step_ns"] > 0


def test_flags_of_a_block_are_those_of_the_windows(debugged: tuple[str, Any, Any]) -> None:
    facts = debugged[2].facts()
    assert {window: flags["anomaly_detection"] for window, flags in facts["flags_by_window"].items()} == {
        "base": True,
        "timing": True,
        "evidence": True,
    }
    assert not facts["flags"]["anomaly_detection"]


def test_kept_losses_are_counted(debugged: tuple[str, Any, Any]) -> None:
    kept = debugged[2].facts()["retained"]
    steps = kept["last"]["step"] - kept["first"]["step"]
    assert steps >= 6
    assert kept["last"]["tensors"] - kept["first"]["tensors"] >= steps
    assert kept["last"]["chain"] - kept["first"]["chain"] >= steps - 1


def test_an_anomaly_shows_the_programs_stack_alone(launcher: Any, capture_kit: dict[str, Any]) -> None:
    path = launcher.write(capture_kit["PRELUDE"] + FAILING, "failing.py")
    plain, recorded = launcher.run_plain(path.name), launcher.run(path.name)
    assert recorded.exit_code == plain.returncode == 1
    assert "returned nan values" in recorded.stderr
    assert "_perfdoctor_inject" not in recorded.stderr


def test_the_line_that_calls_the_model_is_marked(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + EVALUATING
    path = launcher.write(source, "evaluating.py")
    plain, recorded = launcher.run_plain(path.name), launcher.run(path.name)
    assert recorded.stdout == plain.stdout
    marks = {name for name in recorded.names("evidence") if name.startswith("perfdoctor::module_call ")}
    assert f"{path.name}:{line_of(source, 'evaluated')} <module>" in {mark.rpartition("/")[2] for mark in marks}
    assert not [name for name in recorded.names("timing") if "module_call" in name]
    facts = recorded.facts()
    (switch,) = facts["debug_switches"]
    assert (switch["switch"], switch["steps"]) == ("deterministic algorithms", 14)
    assert switch["location"]["line"] == line_of(source, "deterministic")
    assert facts["flags_by_window"]["timing"]["deterministic_algorithms"]


def test_a_call_with_the_tensors_of_an_earlier_one_is_marked_so(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + AGAIN
    path = launcher.write(source, "again.py")
    plain, recorded = launcher.run_plain(path.name), launcher.run(path.name)
    assert recorded.stdout == plain.stdout
    names = [name for name in recorded.names("evidence") if name.startswith(("@", "perfdoctor::again "))]
    before = {names[at - 1].rpartition("/")[2] for at, name in enumerate(names) if not name.startswith("@")}
    assert f"{path.name}:{line_of(source, 'again')} <module>" in before


def test_results_that_no_step_changes_and_products_with_zeros_are_marked(
    launcher: Any, capture_kit: dict[str, Any]
) -> None:
    source = capture_kit["PRELUDE"] + UNCHANGED
    path = launcher.write(source, "unchanged.py")
    plain, recorded = launcher.run_plain(path.name), launcher.run(path.name)
    assert recorded.stdout == plain.stdout
    marks = ("perfdoctor::unchanged", "perfdoctor::zeros 1 ")
    names = [name for name in recorded.names("evidence") if name.startswith(("@", *marks))]
    for mark, line in zip(marks, ("unchanged", "zeros"), strict=True):
        before = {names[at - 1].rpartition("/")[2] for at, name in enumerate(names) if name.startswith(mark)}
        assert f"{path.name}:{line_of(source, line)} <module>" in before
    assert not [name for name in recorded.names("timing") if "unchanged" in name]


def test_tensors_of_inference_mode_are_left_alone(launcher: Any, capture_kit: dict[str, Any]) -> None:
    path = launcher.write(capture_kit["PRELUDE"] + INFERENCE, "inference.py")
    plain, recorded = launcher.run_plain(path.name), launcher.run(path.name)
    assert (recorded.exit_code, plain.returncode) == (0, 0), recorded.stderr
    assert recorded.stdout == plain.stdout


def test_switches_of_the_environment_are_facts_and_nothing_else_is(launcher: Any, capture_kit: dict[str, Any]) -> None:
    path = launcher.write(capture_kit["TRAIN"], "environment.py")
    variables = {"NCCL_DEBUG": "WARN", "KMP_BLOCKTIME": "0" * 500, "AWS_SECRET_ACCESS_KEY": "hunter2"}
    recorded = launcher.run(path.name, env=variables)
    environment = recorded.facts()["environment"]
    assert environment["NCCL_DEBUG"] == "WARN"
    assert len(environment["KMP_BLOCKTIME"]) == 120
    assert "hunter2" not in str(recorded.facts())
