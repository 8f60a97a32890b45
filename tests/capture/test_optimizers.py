"""Optimizers: their own time is separate from that of closures, and the lines are those of the program."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

# Three of the timing window, and the one that warms it up.
RECORDED_STEPS = 4

# The closure works for some ms, a step of the optimizer for some 10 us.
CLOSURE = """
class Runner:
    def fit(self, optimizer):
        for x, y in DataLoader(data, batch_size=4):
            def closure():
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                time.sleep(0.01)
                return loss
            kept = optimizer.step(closure)
        return kept
made = torch.optim.SGD(model.parameters(), lr=0.1)  # here
print("loss", Runner().fit(made).item())
"""

LBFGS = """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
calls = []
for x, y in DataLoader(data, batch_size=4):
    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss
    loss = optimizer.step(closure=closure)
print("loss", float(loss), len(calls))
"""

# A class of the program's own around torch's, whose constructor is not where the optimizer is made.
WRAPPED = """
class Mine(torch.optim.SGD):
    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
optimizer = Mine(model.parameters())  # here
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
"""

FAILING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def closure():
    raise ValueError("in the closure")
for number, batch in enumerate(DataLoader(data, batch_size=4)):
    train_step(batch, optimizer)
    if number == 6:
        optimizer.step(closure)
"""

LIGHTNING = """
import warnings
warnings.simplefilter("ignore")
from lightning.pytorch import LightningModule, Trainer
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        x, y = batch
        time.sleep(0.005)  # longer than a step of the optimizer on a busy machine
        return nn.functional.cross_entropy(self.model(x), y)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)  # here
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
Trainer(accelerator="cpu", max_epochs=1, **quiet).fit(Module(), DataLoader(data, batch_size=4))
"""


def record_program(launcher: Any, capture_kit: dict[str, Any], program: str) -> tuple[Any, int]:
    """The program as recorded, and the number of its line that ends with "# here"."""
    path = launcher.write(capture_kit["PRELUDE"] + program)
    lines = path.read_text().splitlines()
    here = next((number for number, line in enumerate(lines, 1) if line.endswith("# here")), 0)
    return launcher.run(path.name), here


def run_plain(launcher: Any, capture_kit: dict[str, Any], program: str) -> Any:
    return launcher.run_plain(launcher.write(capture_kit["PRELUDE"] + program).name)


@pytest.fixture(scope="module")
def closure_run(launcher: Any, capture_kit: dict[str, Any]) -> tuple[Any, int]:
    """The program with a closure, recorded once for all that is asked of it."""
    return record_program(launcher, capture_kit, CLOSURE)


def spans(recorded: Any, name: str, trace: str = "timing") -> list[tuple[float, float]]:
    events = [e for e in recorded.trace(trace)["traceEvents"] if e.get("ph") == "X" and e["name"] == name]
    return sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in events)


def contains(outer: tuple[float, float], inner: tuple[float, float]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def test_a_closure_is_marked_and_timed(
    launcher: Any, capture_kit: dict[str, Any], closure_run: tuple[Any, int]
) -> None:
    recorded, here = closure_run
    plain = run_plain(launcher, capture_kit, CLOSURE)
    assert plain.returncode == recorded.exit_code == 0
    assert recorded.stdout == plain.stdout
    (optimizer,) = recorded.facts()["optimizers"]
    assert optimizer["closure_ns"] > max(10_000_000, 2 * optimizer["own_ns"])  # its sleep is not the optimizer's
    assert optimizer["own_ns"] > 0
    assert (optimizer["created"]["line"], optimizer["created"]["function"]) == (here, "<module>")
    assert optimizer["location"]["function"] == "fit"
    steps, closures = spans(recorded, "Optimizer.step#SGD.step"), spans(recorded, "perfdoctor::closure")
    assert len(closures) == len(steps) == RECORDED_STEPS
    assert all(contains(step, closure) for step, closure in zip(steps, closures, strict=True))


def test_passes_within_a_closure_are_marked(closure_run: tuple[Any, int]) -> None:
    recorded = closure_run[0]
    forward, backward = spans(recorded, "perfdoctor::forward"), spans(recorded, "perfdoctor::backward")
    for closure, after in zip(spans(recorded, "perfdoctor::closure"), backward, strict=True):
        assert contains(closure, after)
        assert any(contains(closure, before) and before[1] <= after[0] for before in forward)
        assert not any(after[1] <= before[0] <= closure[1] for before in forward)


def test_lines_of_the_optimizer_and_of_the_closure(closure_run: tuple[Any, int]) -> None:
    recorded, here = closure_run
    marked = {name.rpartition(" ")[2] for name in recorded.names("evidence") if name.startswith("@")}
    assert {"fit", "closure"} <= marked
    assert here


def test_lbfgs_calls_its_closure_as_often_as_without(launcher: Any, capture_kit: dict[str, Any]) -> None:
    plain = run_plain(launcher, capture_kit, LBFGS)
    recorded = record_program(launcher, capture_kit, LBFGS)[0]
    assert plain.returncode == recorded.exit_code == 0
    assert recorded.stdout == plain.stdout
    (optimizer,) = recorded.facts()["optimizers"]
    assert optimizer["class"] == "LBFGS"
    assert min(optimizer["own_ns"], optimizer["closure_ns"]) > 0
    assert (
        len(spans(recorded, "perfdoctor::closure"))
        > len(spans(recorded, "Optimizer.step#LBFGS.step"))
        == RECORDED_STEPS
    )


def test_without_a_closure_all_time_is_the_optimizers(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded, here = record_program(launcher, capture_kit, WRAPPED)
    (optimizer,) = recorded.facts()["optimizers"]
    assert optimizer["own_ns"] > 0 == optimizer["closure_ns"]
    assert optimizer["created"]["line"] == here  # not the line in the class's own constructor
    assert optimizer["location"]["function"] == "train_step"
    assert "perfdoctor::closure" not in recorded.names("timing")


def test_an_error_in_a_closure_is_the_programs(launcher: Any, capture_kit: dict[str, Any]) -> None:
    plain = run_plain(launcher, capture_kit, FAILING)
    recorded = record_program(launcher, capture_kit, FAILING)[0]
    assert plain.returncode == recorded.exit_code == 1
    assert recorded.stderr.endswith("ValueError: in the closure\n")
    assert "perfdoctor_inject" not in recorded.stderr


def test_lightning(launcher: Any, capture_kit: dict[str, Any]) -> None:
    pytest.importorskip("lightning")
    recorded, here = record_program(launcher, capture_kit, LIGHTNING)
    assert recorded.exit_code == 0, recorded.stderr
    (optimizer,) = recorded.facts()["optimizers"]
    assert (optimizer["created"]["line"], optimizer["created"]["function"]) == (here, "configure_optimizers")
    assert optimizer["own_ns"] < optimizer["closure_ns"]
    assert optimizer["location"]["file"] == optimizer["created"]["file"]
    lines = {name for name in recorded.names("evidence") if name.startswith("@")}
    assert not [line for line in lines if "site-packages" in line]


DATA_PARALLEL = """
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
class Wrapper(nn.parallel.DistributedDataParallel):
    def __init__(self, module):
        super().__init__(module)
model = Wrapper(model)  # here
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
leave_group()
"""


def test_the_line_that_wraps_a_model(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded, here = record_program(launcher, capture_kit, DATA_PARALLEL)
    assert recorded.exit_code == 0, recorded.stderr
    wrapped = [model["ddp"] for model in recorded.facts()["models"] if model["ddp"]]
    assert [each["created"]["line"] for each in wrapped] == [here]
