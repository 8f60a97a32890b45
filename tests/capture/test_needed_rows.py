"""Which calls compute rows in vain: copies of other rows, and rows without a gradient."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from perfdoctor.capture.inject._perfdoctor_inject.call_records import CallRecords
from perfdoctor.capture.inject._perfdoctor_inject.module_calls import ModuleCalls
from perfdoctor.capture.inject._perfdoctor_inject.needed_rows import NeededRows
from perfdoctor.capture.inject._perfdoctor_inject.source_lines import SourceLineMode
from perfdoctor.capture.inject._perfdoctor_inject.value_looks import UnchangedResults
from perfdoctor.capture.inject._perfdoctor_inject.value_numbers import ValueNumbers

Loss = Callable[[], torch.Tensor]


def found_in(loss: Loss, steps: int = 2) -> set[tuple[str, float]]:
    """What is found in some steps: the kind and the share of rows that are needed, to two digits."""
    rows, calls = NeededRows(), ModuleCalls(lambda: True)

    def on_call(module: nn.Module, frame: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return rows.open_call(module, frame, (*args, *kwargs.values()), is_outermost=True)  # type: ignore[arg-type]

    def on_inner(module: nn.Module, frame: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return rows.open_call(module, frame, (*args, *kwargs.values()), is_outermost=False)  # type: ignore[arg-type]

    calls.add(on_call)  # type: ignore[arg-type]
    calls.inner_listener = on_inner  # type: ignore[assignment]
    rows.start()
    try:
        with SourceLineMode(UnchangedResults(), rows, CallRecords(), ValueNumbers()):
            for _ in range(steps):
                result = loss()
                if result.requires_grad:
                    rows.on_backward(result)
                    result.backward()  # type: ignore[no-untyped-call]
    finally:
        calls.inner_listener = None
        calls.remove(on_call)  # type: ignore[arg-type]
    rows.stop()
    return {(each["kind"], round(each["share"], 2)) for each in rows.found}


class Model(nn.Module):
    """Modules that a function of a program calls inside one module."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts, self.function = nn.ModuleList(parts), function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*self.parts, *tensors)


def rand(*size: int) -> torch.Tensor:
    return torch.randn(size)


def mlp(width: int = 512) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, width))


def ranks_with_one_user() -> Loss:
    model = Model(lambda gru, h: gru(h.repeat_interleave(32, 0))[1].square(), nn.GRU(64, 96, batch_first=True))
    return lambda: model(rand(8, 30, 64)).mean()


def expands() -> Loss:
    model = Model(lambda layer, x: layer(x[:, None].expand(-1, 16, -1)).square(), mlp())
    return lambda: model(rand(32, 512)).mean()


def tiles() -> Loss:
    model = mlp()
    return lambda: model(rand(32, 512).repeat(8, 1)).square().mean()


def indexes_sequences() -> Loss:
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    model = Model(lambda encoder, x: encoder(x[torch.randint(8, (64,))]).square(), layer)
    return lambda: model(rand(8, 32, 128)).mean()


def convolves_frames() -> Loss:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    return lambda: model(rand(4, 3, 64, 64).repeat_interleave(4, 0)).square().mean()


def calls_own_products() -> Loss:
    model = Model(lambda _, x: torch.tanh(x @ torch.ones(512, 512)), nn.Linear(1, 1))
    return lambda: model(rand(32, 512).repeat_interleave(4, 0)).mean()


def repeats_in_evaluation() -> Loss:
    model = mlp().eval()

    def loss() -> torch.Tensor:
        with torch.no_grad():
            return model(rand(64, 512).repeat_interleave(4, 0)).mean()  # type: ignore[no-any-return]

    return loss


EQUAL = [
    (ranks_with_one_user, 1 / 32),
    (expands, 1 / 16),
    (tiles, 1 / 8),
    (indexes_sequences, 1 / 8),
    (convolves_frames, 1 / 4),
    (calls_own_products, 1 / 4),
    (repeats_in_evaluation, 1 / 4),
]


def labels_few() -> Loss:
    head, labels = nn.Linear(128, 1000), torch.where(torch.arange(640) % 8 == 0, 1, -100)
    return lambda: F.cross_entropy(head(rand(640, 128)), labels)


def labels_few_behind_tanh() -> Loss:
    head, labels = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 100)), torch.ones(640).long()
    labels[torch.arange(640) % 8 != 0] = -100
    return lambda: F.cross_entropy(head(rand(640, 512)), labels)


def masks_padding() -> Loss:
    model = mlp()
    mask = torch.arange(64)[None] < torch.tensor([32, 16, 8, 8])[:, None]
    return lambda: (model(rand(4, 64, 512)).square() * mask[..., None]).mean()


def filters_examples() -> Loss:
    model, kept = nn.Sequential(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.Flatten()), torch.arange(16) < 4
    return lambda: model(rand(16, 3, 64, 64))[kept].square().mean()


def takes_the_last() -> Loss:
    model = mlp()
    return lambda: model(rand(8, 64, 512))[:, -1].square().mean()


def multiplies_a_negative_zero() -> Loss:
    layer, weight = nn.Linear(512, 512), torch.where(torch.arange(256) < 64, 1.0, -0.0)
    return lambda: (layer(rand(256, 512)) * weight[:, None]).sum()


def labels_few_of_a_tied_head() -> Loss:
    weight, labels = nn.Parameter(rand(1000, 128)), torch.where(torch.arange(640) % 8 == 0, 1, -100)
    return lambda: F.cross_entropy(F.linear(rand(640, 128), weight), labels)


def labels_few_of_a_product() -> Loss:
    weight, labels = nn.Parameter(rand(128, 1000)), torch.where(torch.arange(640) % 8 == 0, 1, -100)
    return lambda: F.cross_entropy(rand(640, 128) @ weight, labels)


USED = [
    (labels_few_of_a_tied_head, 0.12),
    (labels_few_of_a_product, 0.12),
    (labels_few, 0.12),
    (labels_few_behind_tanh, 0.12),
    (masks_padding, 0.25),
    (filters_examples, 0.25),
    (takes_the_last, 0.02),
    (multiplies_a_negative_zero, 0.25),
]


def classifies_images() -> Loss:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 15 * 15, 10))
    return lambda: F.cross_entropy(model(rand(16, 3, 32, 32)), torch.randint(10, (16,)))


def models_language() -> Loss:
    def run(table: nn.Module, rnn: nn.Module, head: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = head(rnn(table(ids))[0])
        return result

    model = Model(run, nn.Embedding(50, 64), nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 200))
    return lambda: F.cross_entropy(model(torch.randint(50, (16, 40))).flatten(0, 1), torch.randint(200, (640,)))


def looks_few_ids_up() -> Loss:
    model = nn.Sequential(nn.Embedding(20, 512), mlp())
    return lambda: model(torch.randint(20, (256,))).square().mean()


def reads_small_numbers() -> Loss:
    model = nn.Sequential(nn.Linear(4, 2048), nn.ReLU(), nn.Linear(2048, 256))
    return lambda: model(torch.randint(2, (512, 4)).float()).square().mean()


def draws_inside() -> Loss:
    model = Model(lambda layer, x: layer(x + torch.randn_like(x)).square(), mlp())
    return lambda: model(rand(8, 512).repeat_interleave(32, 0)).mean()


def drops_out() -> Loss:
    model = nn.Sequential(nn.Dropout(0.1), mlp())
    return lambda: model(rand(8, 512).repeat_interleave(32, 0)).square().mean()


def normalizes_the_batch() -> Loss:
    model = nn.Sequential(nn.Linear(512, 512), nn.BatchNorm1d(512))
    return lambda: model(rand(8, 512).repeat_interleave(32, 0)).pow(3).mean()


def pads_with_zeros() -> Loss:
    model, mask = mlp(), (torch.arange(64) < 16)[:, None]
    return lambda: model(rand(8, 64, 512) * mask).square().mean()


def has_a_margin() -> Loss:
    model = nn.Sequential(mlp(), nn.Linear(512, 1))
    return lambda: F.relu(model(rand(512, 512)) - 0.5).mean()


def clips_ratios() -> Loss:
    model = nn.Sequential(mlp(), nn.Linear(512, 1))
    return lambda: model(rand(512, 512)).squeeze(1).clamp(-0.01, 0.01).mean()


def pools_points() -> Loss:
    model = Model(lambda layer, x: layer(x).amax(1), nn.Linear(512, 16))
    return lambda: model(rand(8, 200, 512)).square().mean()


def mines_hard_examples() -> Loss:
    model = nn.Sequential(mlp(), nn.Linear(512, 10))
    return lambda: F.cross_entropy(model(rand(256, 512)), torch.ones(256).long(), reduction="none").topk(16)[0].mean()


def is_sure_already() -> Loss:
    model, label = nn.Linear(512, 512), torch.arange(256)
    offset = 1000.0 * F.one_hot(label, 512) * (label % 4 != 0)[:, None]  # of a class that it knows after some epochs
    return lambda: F.cross_entropy(model(rand(256, 512)) + offset, label)


def labels_all_of_a_tied_head() -> Loss:
    weight = nn.Parameter(rand(1000, 128))
    return lambda: F.cross_entropy(F.linear(rand(640, 128), weight), torch.randint(1000, (640,)))


def labels_few_of_a_small_product() -> Loss:
    weight, labels = nn.Parameter(rand(128, 50)), torch.where(torch.arange(640) % 8 == 0, 1, -100)
    return lambda: F.cross_entropy(rand(640, 128) @ weight, labels)


QUIET = [
    labels_all_of_a_tied_head,
    labels_few_of_a_small_product,
    classifies_images,
    models_language,
    looks_few_ids_up,
    reads_small_numbers,
    draws_inside,
    drops_out,
    normalizes_the_batch,
    pads_with_zeros,
    has_a_margin,
    clips_ratios,
    pools_points,
    mines_hard_examples,
    is_sure_already,
]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize(("program", "share"), EQUAL, ids=lambda each: getattr(each, "__name__", ""))
def test_copies_of_rows_are_found(program: Callable[[], Loss], share: float) -> None:
    assert found_in(program()) == {("equal", round(share, 2))}


@pytest.mark.parametrize(("program", "share"), USED, ids=lambda each: getattr(each, "__name__", ""))
def test_rows_without_a_gradient_are_found(program: Callable[[], Loss], share: float) -> None:
    assert found_in(program()) == {("used", share)}


@pytest.mark.parametrize("program", QUIET, ids=lambda each: each.__name__)
def test_programs_that_need_their_rows_are_left_alone(program: Callable[[], Loss]) -> None:
    assert found_in(program()) == set()


def test_as_many_programs_are_quiet() -> None:
    assert len(QUIET) == len(EQUAL) + len(USED)


def test_a_look_is_no_op_of_the_program_and_changes_nothing() -> None:
    def step(model: nn.Module, watched: bool) -> tuple[list[str], list[torch.Tensor]]:
        rows, x = NeededRows(), torch.ones(512, 512)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            end = rows.open_call(model, sys._getframe(), (x,), is_outermost=True) if watched else None
            out = model(x)
            if end is not None:
                end(out)
            loss = out[:8].sum()
            if watched:
                rows.on_backward(loss)
            loss.backward()  # type: ignore[no-untyped-call]
        assert not watched or {each["kind"] for each in rows.found} == {"equal", "used"}
        names = [each.name for each in profile.events() if not each.name.startswith("perfdoctor::")]
        gradients = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        model.zero_grad()
        return names, gradients

    model = nn.Linear(512, 256)
    (names, gradients), (watched_names, watched) = step(model, watched=False), step(model, watched=True)
    assert watched_names == names
    assert all(torch.equal(a, b) for a, b in zip(gradients, watched, strict=True))


def test_a_look_computes_no_parametrized_weight() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(512, 512))  # each use changes what it iterates
    before = [each.clone() for each in layer.buffers()]
    end = NeededRows().open_call(layer, sys._getframe(), (torch.ones(512, 512),), is_outermost=True)
    assert end is not None
    assert all(torch.equal(a, b) for a, b in zip(before, layer.buffers(), strict=True))


def test_no_graph_is_kept_alive() -> None:
    rows, layer = NeededRows(), nn.Linear(512, 512)
    x = torch.randn(256, 512, requires_grad=True)
    end = rows.open_call(layer, sys._getframe(), (x,), is_outermost=True)
    out = layer(x)
    assert end is not None
    end(out)
    kept_by_graph = weakref.ref(x)
    del x, out, end
    assert kept_by_graph() is None


def test_tensors_of_any_kind_are_no_error_of_the_program() -> None:
    rows, layer = NeededRows(), nn.Linear(512, 512)
    frame = sys._getframe()
    for x in (torch.empty(64, 512, device="meta"), torch.ones(64, 512).to_sparse(), torch.ones(0, 512), [1], "x"):
        rows.open_call(layer, frame, (x,), is_outermost=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        end = rows.open_call(layer, frame, (x,), is_outermost=True)
        result: torch.Tensor = layer(x)
        if end is not None:
            end(result)
        return result.sum()

    torch.func.grad(loss)(torch.randn(64, 512))
    torch.func.vmap(loss)(torch.randn(3, 64, 512))
    rows.on_backward(None)
    rows.on_backward([torch.ones(1)])
    assert not rows.found


RANKER = """
class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(64, 96, batch_first=True), nn.Linear(160, 1)
    def forward(self, history, items):
        _, user = self.gru(HISTORY)
        return self.head(torch.cat([user[0], items], 1)).squeeze(1)
ranker = Ranker()
optimizer = torch.optim.SGD(ranker.parameters(), lr=0.1)
for step in range(14):
    history, items = torch.randn(8, 20, 64), torch.randn(160, 64)
    loss = nn.functional.mse_loss(ranker(history, items), torch.rand(160))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("is_repeated", [True, False])
def test_a_user_who_is_encoded_for_each_item_is_found(
    launcher: Any, capture_kit: dict[str, Any], is_repeated: bool
) -> None:
    import perfdoctor

    history = "history.repeat_interleave(20, 0)" if is_repeated else "torch.randn(160, 20, 64)"
    recorded = launcher.record(capture_kit["PRELUDE"] + RANKER.replace("HISTORY", history))
    found = [each for each in perfdoctor.analyze(recorded.out).findings if each.rule == "PD210"]
    program = (capture_kit["PRELUDE"] + RANKER).splitlines()
    lines = [program[each.location.line - 1] for each in found if each.location and each.location.line]
    assert ["self.gru(" in each for each in lines] == [True] * is_repeated
