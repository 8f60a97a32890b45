"""The recorder in this process: the session of the API, and step detection on real loops of torch."""

from __future__ import annotations

import gzip
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from perfdoctor.capture.inject._perfdoctor_inject.gradient_use import GradientUse  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.module_calls import ModuleCalls  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.recorder import Recorder  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import RecorderSettings  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.source_lines import SourceLines  # noqa: E402
from perfdoctor.capture.inject._perfdoctor_inject.torch_hooks import Hooks  # noqa: E402
from perfdoctor.capture.session import profile  # noqa: E402
from perfdoctor.errors import CaptureError, UsageError  # noqa: E402

SIZES = {"skip": 2, "base": 2, "warmup": 1, "timing": 3, "evidence": 2}
STEPS = 14


@contextmanager
def recording(folder: Path, **sizes: int) -> Iterator[Recorder]:
    """Automatic detection in this process, without any exit handler."""
    recorder = Recorder(RecorderSettings(folder=str(folder), **{**SIZES, **sizes}))
    hooks = Hooks(recorder)
    hooks.install()
    try:
        yield recorder
        recorder.finish("test")
    finally:
        hooks.remove()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x).square().mean()


def batches() -> Any:
    return DataLoader(TensorDataset(torch.ones(STEPS * 2, 8)), batch_size=2)


def new_class(base: Any) -> Any:
    """A new class like this one: torch wraps the `step` of each optimizer class once and for all."""
    step = base.__dict__["step"]
    while any(name in step.__code__.co_qualname for name in ("profile_hook_step", "watch_calls")):  # by earlier tests
        step = step.__wrapped__
    return type(base.__name__, (base,), {"step": step})


def accumulation(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for number, (x,) in enumerate(batches()):
            model(x).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


def gan(model: Model) -> None:
    other = Model()
    pair = [(net, torch.optim.Adam(net.parameters())) for net in (model, other)]
    for (x,) in batches():
        for net, optimizer in pair:
            optimizer.zero_grad()
            net(x).backward()
            optimizer.step()


def scaler_that_skips(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for (x,) in batches():
        optimizer.zero_grad()
        scaler.scale(model(x * 1e6)).backward()
        scaler.step(optimizer)
        scaler.update(2.0**120)


def lbfgs(model: Model) -> None:
    optimizer = new_class(torch.optim.LBFGS)(model.parameters(), max_iter=3)
    for (x,) in batches():

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            return loss

        optimizer.step(closure)


def evaluation_between(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x,) in enumerate(batches()):
        model(x).backward()
        optimizer.step()
        if number == 3:
            with torch.no_grad():
                for (y,) in batches():
                    model(y)


def no_loader(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS + 1):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).backward()
        optimizer.step()


def forward_before_zero_grad(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS + 1):
        loss = model(torch.ones(2, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def scaler_after_zero_grad(model: Model) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    for _ in range(STEPS + 1):
        loss = scaler.scale(model(torch.ones(2, 8)))
        optimizer.zero_grad()
        loss.backward()
        scaler.step(optimizer)
        scaler.update(2.0**120)


def lbfgs_alone(model: Model) -> None:
    optimizer = new_class(torch.optim.LBFGS)(model.parameters(), max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8))
        loss.backward()
        return loss

    for _ in range(STEPS + 2):
        optimizer.step(closure)


def optimizer_in_backward(model: Model) -> None:
    """The step of PyTorch's tutorial: an optimizer for each parameter, called by hooks while the gradients come."""
    optimizers = {each: torch.optim.SGD([each], lr=0.1) for each in model.parameters()}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)
    for _ in range(STEPS + 2):
        model(torch.ones(2, 8)).backward()


def update_by_hand(model: Model) -> None:
    for _ in range(STEPS + 3):
        loss = model(torch.ones(2, 8))
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.1 * each.grad


def inference(model: Model) -> None:
    with torch.no_grad():
        for _ in range(2):
            for (x,) in batches():
                model(x)


def evaluation_without_loader(model: Model) -> None:
    criterion = nn.MSELoss()
    with torch.no_grad():
        for _ in range(STEPS + 4):
            criterion(model(torch.ones(2, 8)), torch.zeros(()))


def features_before_training(model: Model) -> None:
    evaluation_without_loader(model)
    no_loader(Model())


@pytest.mark.parametrize(
    ("loop", "steps", "source"),
    [
        (accumulation, STEPS, "loader"),
        (gan, STEPS, "loader"),
        (scaler_that_skips, STEPS, "loader"),
        (lbfgs, STEPS, "loader"),
        (evaluation_between, STEPS, "loader"),
        (no_loader, STEPS, "zero_grad"),
        (forward_before_zero_grad, STEPS, "optimizer"),
        (scaler_after_zero_grad, STEPS, "optimizer"),
        (lbfgs_alone, STEPS, "optimizer"),
        (optimizer_in_backward, STEPS, "backward"),
        (update_by_hand, STEPS, "backward"),
        (inference, 2 * STEPS + 2 - 3, "loader"),
        (evaluation_without_loader, STEPS, "forward"),
        (features_before_training, 2 * STEPS, "zero_grad"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_steps_are_found_on_real_loops(tmp_path: Path, loop: Callable[[Model], None], steps: int, source: str) -> None:
    with recording(tmp_path) as recorder:
        loop(Model())
    assert recorder.step == steps
    assert recorder.detector.source == source
    assert recorder.windows["timing"]["complete"]
    assert (loop is features_before_training) == (recorder.windows["timing"]["first_step"] > STEPS)


@pytest.mark.parametrize("call", [lambda _: nn.ReLU()(torch.ones(2)), lambda model: model.zero_grad()])
def test_a_program_without_steps_leaves_no_folder(tmp_path: Path, call: Callable[[Model], Any]) -> None:
    with recording(tmp_path) as recorder:
        model = Model()
        for _ in range(30):
            call(model)
    assert recorder.step == 0
    assert list(tmp_path.iterdir()) == []


def test_every_wrapper_is_removed(tmp_path: Path) -> None:
    owners = [torch.autograd, torch.optim.Optimizer, DataLoader, torch.nn.Module, torch.nn.utils]
    before = [dict(vars(owner)) for owner in owners]
    with recording(tmp_path):
        assert vars(DataLoader)["__iter__"] is not before[2]["__iter__"]
    assert [dict(vars(owner)) for owner in owners] == before


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("detaches", [False, True])
def test_gradients_that_nobody_uses_are_facts(tmp_path: Path, detaches: bool) -> None:
    model, other = nn.Linear(8, 8), nn.Linear(8, 2)
    with recording(tmp_path):
        sgd = new_class(torch.optim.SGD)
        ours, second = (sgd(each.parameters(), lr=0.1) for each in (other, model))
        for (x,) in batches():
            ours.zero_grad()
            fake = model(x)
            other(fake.detach() if detaches else fake).mean().backward()
            ours.step()
            second.zero_grad()
            other.requires_grad_(False)
            other(model(x)).mean().backward()
            other.requires_grad_(True)
            second.step()
    found = json.loads((tmp_path / "rank0" / "facts.json").read_text())["unused_gradients"]
    assert [each["parameters"] for each in found] == ([] if detaches else [72])


@pytest.mark.parametrize("fused", [False, True])
def test_amp_facts_count_clipping_before_unscaling(tmp_path: Path, fused: bool) -> None:
    def loop(unscale: bool, enabled: bool = True) -> dict[str, Any]:
        model, other = Model(), Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", enabled=enabled)
        folder = tmp_path / f"{unscale}{enabled}"
        folder.mkdir()
        with recording(folder):
            for (x,) in batches():
                optimizer.zero_grad(set_to_none=False)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = model(x)
                scaler.scale(loss).backward()
                if unscale:
                    scaler.unscale_(optimizer)
                else:
                    nn.utils.clip_grad_norm_(other.parameters(), 1.0)  # has no scaled gradients
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        facts = json.loads((folder / "rank0" / "facts.json").read_text())
        assert facts["zero_grad_to_zero"] == STEPS
        amp: dict[str, Any] = facts["amp"]
        return amp

    wrong = loop(unscale=False)
    assert wrong["clipped_before_unscale"] == STEPS
    assert wrong["clip_location"]["function"] == "loop"
    right = loop(unscale=True)
    assert right["clipped_before_unscale"] == 0
    assert (right["autocast"], right["scaled"], right["clipped"]) == (STEPS, STEPS, STEPS)
    assert loop(unscale=False, enabled=False)["clipped_before_unscale"] == 0


def test_a_failure_of_ours_is_one_line_and_the_loop_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise ValueError("ours")

    with recording(tmp_path) as recorder:
        monkeypatch.setattr(type(recorder.profiler), "start", broken)
        no_loader(Model())
    assert recorder.finished
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert errors.startswith("perfdoctor: recording failed in step 4")


def files_of(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if "_perfdoctor_inject" in frame.filename]


class BadData:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise ValueError("no such picture")


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the count of compiled graphs: after earlier tests of this process it would turn the mode for lines off."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        monkeypatch.setitem(utils.counters["stats"], "unique_graphs", 0)


def test_windows_from_the_first_step_on_begin_with_the_second(tmp_path: Path) -> None:
    with recording(tmp_path, skip=0, base=0, warmup=0) as recorder:
        no_loader(Model())
    assert recorder.windows["timing"] == {"steps": 3, "complete": True, "file": "timing.json.gz", "first_step": 1}
    assert recorder.windows["evidence"]["complete"]


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with recording(tmp_path / "gone") as recorder:
        no_loader(Model())
    assert recorder.finished
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "nothing is recorded, the program runs on" in errors


class OwnOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """One that no earlier test has stepped: torch wraps the `step` of each class once and for all."""

    def step(self, closure: Any = None) -> Any:
        return closure()


def test_errors_of_the_program_show_none_of_our_frames(tmp_path: Path) -> None:
    weight = torch.ones(2, requires_grad=True)

    def bad_closure() -> Any:
        raise ValueError("bad closure")

    wrong: list[tuple[Callable[[], Any], str]] = [
        (lambda: next(iter(DataLoader(BadData()))), "no such picture"),  # type: ignore[arg-type]
        (lambda: DataLoader(BadData(), num_workers=-1), "num_workers"),  # type: ignore[arg-type]
        (lambda: weight.backward(), "scalar outputs"),
        (lambda: OwnOptimizer([weight], {}).step(bad_closure), "bad closure"),
        (lambda: OwnOptimizer([weight], {}).zero_grad(nonsense=1), "nonsense"),
        (lambda: torch.optim.SGD([], lr=0.1), "empty parameter list"),
        (lambda: torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite="x", foreach=True, no=1), "no"),
    ]
    with recording(tmp_path):
        weight.grad = torch.ones(2)
        for call, text in wrong:
            with pytest.raises((ValueError, RuntimeError, TypeError), match=text) as raised:
                call()
            assert files_of(raised.value) == []
            assert raised.traceback[0].path == Path(__file__)


@pytest.mark.usefixtures("nothing_compiled")
def test_errors_in_a_decorated_function_show_none_of_our_frames(tmp_path: Path) -> None:
    @profile(tmp_path / "out", skip=0, base=0, warmup=0, timing=1, evidence=30)
    def train() -> None:
        optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
        for _ in range(9):
            optimizer.zero_grad()
            session_step(Model(), optimizer)
        assert depth() == 1, "the evidence window is open"
        nn.functional.linear(torch.ones(2, 3), torch.ones(4, 5))

    with pytest.raises(RuntimeError, match="shapes") as raised:
        train()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert not [frame.filename for frame in frames if "perfdoctor/capture" in frame.filename]
    assert frames[1].name == "train"


class UserMode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def depth() -> int:
    return int(torch._C._len_torch_function_stack())


@pytest.mark.usefixtures("nothing_compiled")
def test_the_line_mode_is_removed_from_below_a_users_mode() -> None:
    lines = SourceLines(ModuleCalls(lambda: True), GradientUse())
    before = depth()
    lines.start()
    with UserMode():
        lines.stop()
        assert depth() == before + 1
    assert depth() == before


def test_the_exit_of_a_users_mode_below_ours_removes_ours() -> None:
    lines = SourceLines(ModuleCalls(lambda: True), GradientUse())
    before = depth()
    mode = UserMode()
    mode.__enter__()
    lines.start()
    mode.__exit__(None, None, None)
    assert depth() == before
    lines.stop()
    assert depth() == before


def session_step(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 8)).backward()
    optimizer.step()


def test_a_session_records_marked_steps(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(tmp_path / "out", **SIZES) as session:
        for _ in batches():
            with session.step():
                session_step(model, optimizer)
    assert session.folder == tmp_path / "out"
    assert session.ranks == (0,)
    steps = [json.loads(line) for line in (session.folder / "rank0" / "steps.jsonl").read_text().splitlines()]
    assert len(steps) == STEPS
    assert all(step["loader_wait_ns"] > 0 for step in steps)
    facts = json.loads((session.folder / "rank0" / "facts.json").read_text())
    assert facts["step_source"] == "session"
    assert facts["optimizers"][0]["class"] == "SGD"
    assert facts["loaders"][0]["location"]["function"] == "test_a_session_records_marked_steps"
    with gzip.open(session.folder / "rank0" / "timing.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert [f"ProfilerStep#{number}" in names for number in (4, 5, 6, 7, 8)] == [False, True, True, True, False]


def test_a_session_of_fewer_steps_than_asked_for_names_the_number_needed(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(tmp_path / "out", skip=10) as session:
        for _ in range(6):
            with session.step():
                session_step(model, optimizer)
    with pytest.raises(CaptureError, match=r"ended after 6 steps, .* let it run for 34 steps; windows that fit: "):
        session.report()


def test_a_loader_with_an_iterator_from_before_the_session_is_described(tmp_path: Path) -> None:
    iterator = iter(DataLoader(TensorDataset(torch.ones(9, 8)), batch_size=3, drop_last=True))
    with profile(tmp_path / "out", skip=0, base=1, warmup=0, timing=1, evidence=0) as session:
        for _ in range(3):
            with session.step():
                next(iterator)
    (loader,) = json.loads((session.folder / "rank0" / "facts.json").read_text())["loaders"]
    assert {name: loader[name] for name in ("dataset", "batch_size", "num_workers", "sampler", "drop_last")} == {
        "dataset": "TensorDataset",
        "batch_size": 3,
        "num_workers": 0,
        "sampler": "SequentialSampler",
        "drop_last": True,
    }
    assert loader["batches"] == 3
    assert loader["location"]["function"] == "test_a_loader_with_an_iterator_from_before_the_session_is_described"


def test_a_session_that_records_from_the_first_step(tmp_path: Path) -> None:
    with profile(tmp_path / "out", skip=0, base=0, warmup=0, timing=2, evidence=0) as session:
        for _ in range(2):
            with session.step():
                torch.ones(2).sum()
    windows = json.loads((session.folder / "rank0" / "facts.json").read_text())["windows"]
    assert windows["timing"]["steps"] == 2
    assert windows["timing"]["complete"]


def test_a_function_becomes_a_step_by_decoration(tmp_path: Path) -> None:
    session = profile(tmp_path / "out", skip=0, base=1, warmup=1, timing=2, evidence=0)

    @session.step()
    def train_step(x: int) -> int:
        return x + int(torch.ones(2).sum())

    with pytest.raises(UsageError, match="has not begun"):
        train_step(1)
    with session:
        assert [train_step(x) for x in range(5)] == [2, 3, 4, 5, 6]
    facts = json.loads((session.folder / "rank0" / "facts.json").read_text())
    assert (facts["steps_seen"], facts["step_source"]) == (5, "session")
    assert facts["windows"]["timing"]["complete"]


def test_a_decorated_loop_is_recorded_in_its_first_call(tmp_path: Path) -> None:
    @profile(tmp_path / "out", **SIZES)
    def train(model: Model) -> str:
        """Train."""
        no_loader(model)
        return "done"

    assert (train(Model()), train.__doc__) == ("done", "Train.")
    facts = json.loads((train.session.folder / "rank0" / "facts.json").read_text())
    assert (facts["step_source"], facts["exit"]) == ("zero_grad", "session")
    assert facts["windows"]["evidence"]["complete"]
    assert train(Model()) == "done"
    assert json.loads((train.session.folder / "rank0" / "facts.json").read_text()) == facts


def test_an_exception_leaves_a_session_and_a_partial_window(tmp_path: Path) -> None:
    session = profile(tmp_path / "out", **SIZES)

    def loop() -> None:
        with session:
            for number in range(STEPS):
                with session.step():
                    torch.ones(2).sum() / (1 // (6 - number))

    with pytest.raises(ZeroDivisionError):
        loop()
    facts = json.loads((session.folder / "rank0" / "facts.json").read_text())
    assert facts["exit"] == "exception"
    assert facts["windows"]["timing"]["steps"] == 1
    assert not facts["windows"]["timing"]["complete"]


def test_the_users_profiler_runs_inside_a_session(tmp_path: Path) -> None:
    with profile(tmp_path / "out", **SIZES) as session:
        for number in range(STEPS):
            with session.step():
                if number == 6:
                    with torch.profiler.profile() as own:
                        torch.ones(2).sum()
    assert any(each.key == "aten::sum" for each in own.key_averages())
    facts = json.loads((session.folder / "rank0" / "facts.json").read_text())
    assert "took over" in facts["notes"][0]


def test_wrong_use_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such option: 'speed'"):
        profile(tmp_path, speed=3)
    with pytest.raises(UsageError, match="perfdoctor run"):
        profile(tmp_path, nvtx_only=True)
    with pytest.raises(UsageError, match="has not begun"), profile(tmp_path).step():
        pass
    (tmp_path / "something").touch()
    with pytest.raises(CaptureError, match="is not empty"):
        profile(tmp_path).__enter__()
