"""Twelve small training programs, each with one planted fault and a switch that fixes it.

Each is an endless generator: one training step for each item. The fault costs a good part of the step on the kind of
machine that the program is for, and there is no other fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Steps = Iterator[None]


@dataclass(frozen=True)
class Setting:
    """The device of a program, its size (1.0; less in tests), and whether the fault is fixed."""

    device: str = "cpu"
    scale: float = 1.0
    fixed: bool = False

    def size(self, cpu: int, gpu: int, least: int = 8) -> int:
        """A size for this device and scale, a multiple of 8."""
        full = gpu if self.device == "cuda" else cpu
        return max(least, round(full * self.scale / 8) * 8)


@dataclass(frozen=True)
class Fault:
    """One program.

    Attributes:
        name: For the command line and the table.
        rules: The rules that should find the fault on a GPU; the sum of their savings is the promise.
        fix: What the switch does.
        steps: The program.
        on_cpu: The rules that should find it on a CPU. Empty where the fault costs time there and no rule finds it;
            None where it costs nothing without a GPU.
    """

    name: str
    rules: tuple[str, ...]
    fix: str
    steps: Callable[[Setting], Steps]
    on_cpu: tuple[str, ...] | None = None


class Samples(Dataset[tuple[torch.Tensor, int]]):
    """Random rows, each prepared by a function: a wait for storage, or a transform."""

    def __init__(self, width: int, prepare: Callable[[torch.Tensor], torch.Tensor], count: int = 512) -> None:
        self.rows = torch.randn(count, width)
        self.prepare = prepare

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.prepare(self.rows[index]), index % 10


def wait_for_storage(row: torch.Tensor) -> torch.Tensor:
    """A row that slow storage delivers after half a millisecond."""
    time.sleep(0.0005)
    return row


def normalize_in_python(row: torch.Tensor) -> torch.Tensor:
    """A row normalized number by number in Python."""
    return torch.tensor([min(max(value * 0.5 + 0.1, -1.0), 1.0) for value in row.tolist()])


def normalize(row: torch.Tensor) -> torch.Tensor:
    """A row normalized by three ops."""
    return row.mul(0.5).add_(0.1).clamp_(-1.0, 1.0)


def make_perceptron(setting: Setting, width: int, depth: int = 3, out: int = 10) -> nn.Sequential:
    """Linear layers with activations between them."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, out)).to(setting.device)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """A fused AdamW, which is no fault."""
    return torch.optim.AdamW(model.parameters(), fused=True)


def train_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer, *, set_to_none: bool = True) -> None:
    """Backward and update."""
    optimizer.zero_grad(set_to_none=set_to_none)
    loss.backward()
    optimizer.step()


def train_from_loader(
    setting: Setting, data: Dataset[tuple[torch.Tensor, int]], width: int, workers: int, pin: bool
) -> Steps:
    """Train on a data set in batches of 16."""
    model = make_perceptron(setting, width)
    optimizer = make_optimizer(model)
    loader = DataLoader(
        data, batch_size=16, num_workers=workers, persistent_workers=workers > 0, pin_memory=pin, drop_last=True
    )
    while True:
        for x, y in loader:
            x, y = x.to(setting.device, non_blocking=pin), y.to(setting.device, non_blocking=pin)
            train_step(functional.cross_entropy(model(x), y), optimizer)
            yield


def loader_without_workers(setting: Setting) -> Steps:
    """The training loop waits for storage."""
    width = setting.size(cpu=512, gpu=4096)
    workers = (4 if setting.device == "cuda" else 2) if setting.fixed else 0
    return train_from_loader(setting, Samples(width, wait_for_storage), width, workers, pin=setting.device == "cuda")


def slow_transform(setting: Setting) -> Steps:
    """A transform written in Python."""
    width = setting.size(cpu=512, gpu=4096)
    prepare = normalize if setting.fixed else normalize_in_python
    return train_from_loader(setting, Samples(width, prepare), width, 0, pin=setting.device == "cuda")


def pageable_copies(setting: Setting) -> Steps:
    """Batches of some MB from pageable memory."""
    width = setting.size(cpu=1024, gpu=1 << 18)
    pin = setting.fixed and setting.device == "cuda"
    model = nn.Linear(width, 256).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=True)
    loader = DataLoader(torch.randn(128, width), batch_size=32, pin_memory=pin)  # type: ignore[arg-type]
    while True:
        for batch in loader:
            x = batch.to(setting.device, non_blocking=pin)
            train_step(model(x).square().mean(), optimizer)
            yield


def item_each_step(setting: Setting) -> Steps:
    """A loss is read after every layer, so that the launches never get ahead of the GPU."""
    width = setting.size(cpu=256, gpu=1024)
    model, x = make_perceptron(setting, width, depth=12), torch.randn(64, width, device=setting.device)
    optimizer = make_optimizer(model)
    losses: list[torch.Tensor | float] = []
    while True:
        hidden = x
        for layer in model:
            hidden = layer(hidden)
            mean = hidden.detach().mean()
            losses.append(mean if setting.fixed else mean.item())
        train_step(hidden.square().mean(), optimizer)
        del losses[:-16]
        yield


def tiny_ops(setting: Setting) -> Steps:
    """An op for each row, where one op could do all."""
    rows, width = setting.size(cpu=256, gpu=512), setting.size(cpu=64, gpu=64)
    model, x = make_perceptron(setting, width, depth=1), torch.randn(rows, width, device=setting.device)
    scale = torch.rand(rows, 1, device=setting.device)
    optimizer = make_optimizer(model)
    while True:
        scaled = x * scale + 1 if setting.fixed else torch.stack([x[i] * scale[i] + 1 for i in range(rows)])
        train_step(model(scaled).square().mean(), optimizer)
        yield


def make_small_layers(setting: Setting, count: int) -> nn.ModuleList:
    """Layers with small parameters, as in a deep network."""
    width = setting.size(cpu=32, gpu=256)
    return nn.ModuleList(nn.Linear(width, width) for _ in range(count)).to(setting.device)


def residual_loss(layers: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """The loss of a residual network of these layers."""
    for layer in layers:
        x = x + layer(x)
    return x.square().mean()


def for_loop_optimizer(setting: Setting) -> Steps:
    """AdamW parameter by parameter."""
    layers = make_small_layers(setting, setting.size(cpu=96, gpu=96))
    x = torch.randn(16, layers[0].in_features, device=setting.device) / 100  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(layers.parameters(), 1e-5, foreach=False, fused=setting.fixed)
    while True:
        train_step(residual_loss(layers, x), optimizer)
        yield


def gradients_to_zeros(setting: Setting) -> Steps:
    """Gradients are filled with zeros and then accumulated."""
    layers = make_small_layers(setting, setting.size(cpu=96, gpu=192))
    x = torch.randn(16, layers[0].in_features, device=setting.device) / 100  # type: ignore[arg-type]
    # Without a fused step the zeros would hide behind the optimizer.
    optimizer = torch.optim.SGD(layers.parameters(), 1e-5, fused=True)
    while True:
        train_step(residual_loss(layers, x), optimizer, set_to_none=setting.fixed)
        yield


def gelu_by_formula(x: torch.Tensor) -> torch.Tensor:
    """GELU by its formula, in eight ops."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def unfused_gelu(setting: Setting) -> Steps:
    """GELU written as single ops."""
    width = setting.size(cpu=512, gpu=4096)
    first, second = nn.Linear(width, 4 * width).to(setting.device), nn.Linear(4 * width, width).to(setting.device)
    x = torch.randn(setting.size(cpu=512, gpu=8192), width, device=setting.device)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.01, fused=True)
    while True:
        with torch.autocast(setting.device, torch.bfloat16):
            hidden = first(x)
            hidden = functional.gelu(hidden, approximate="tanh") if setting.fixed else gelu_by_formula(hidden)
            loss = second(hidden).float().square().mean()
        train_step(loss, optimizer)
        yield


def fp32_gemm(setting: Setting) -> Steps:
    """Large products in float32 with TF32 off."""
    torch.set_float32_matmul_precision("high" if setting.fixed else "highest")
    width = setting.size(cpu=256, gpu=4096)
    model, x = make_perceptron(setting, width), torch.randn(width, width, device=setting.device)
    optimizer = make_optimizer(model)
    while True:
        train_step(model(x).square().mean(), optimizer)
        yield


def misaligned_vocabulary(setting: Setting) -> Steps:
    """50,257 words: products over them are not aligned for Tensor Cores."""
    words = setting.size(cpu=2048, gpu=50304) - (0 if setting.fixed else 47)
    width = setting.size(cpu=128, gpu=1024)
    head = nn.Linear(width, words, bias=False).to(setting.device)
    x = torch.randn(setting.size(cpu=64, gpu=4096), width, device=setting.device)
    y = torch.arange(len(x), device=setting.device) % min(words, 2000)
    optimizer = torch.optim.SGD(head.parameters(), 0.01, fused=True)
    while True:
        with torch.autocast(setting.device, torch.bfloat16):
            loss = functional.cross_entropy(head(x), y)
        train_step(loss, optimizer)
        yield


def mask_made_on_host(setting: Setting) -> Steps:
    """A causal mask that is made on the CPU in every layer."""
    length, width = setting.size(cpu=64, gpu=1024), setting.size(cpu=64, gpu=512)
    model, x = make_perceptron(setting, width, depth=8), torch.randn(length, width, device=setting.device)
    optimizer = make_optimizer(model)
    while True:
        hidden = x
        for layer in model[:-1]:
            device = setting.device if setting.fixed else "cpu"
            mask = torch.ones(length, length, device=device).tril().to(setting.device)
            hidden = layer(mask @ hidden / length)
        train_step(model[-1](hidden).square().mean(), optimizer)
        yield


def recompilation(setting: Setting) -> Steps:
    """A model that is compiled again in every step, because the length of its input changes."""
    torch._dynamo.config.recompile_limit = 1024
    torch._dynamo.config.accumulated_recompile_limit = 1024
    width = setting.size(cpu=128, gpu=1024)
    model = make_perceptron(setting, width)
    optimizer = make_optimizer(model)
    # aot_eager compiles in 0.1 s; inductor would take seconds a step and show the same.
    compiled = torch.compile(model, backend="aot_eager", dynamic=setting.fixed)
    length = 16
    while True:
        length += 1
        train_step(compiled(torch.randn(length, width, device=setting.device)).square().mean(), optimizer)
        yield


FAULTS: tuple[Fault, ...] = (
    Fault("loader-without-workers", ("PD101",), "num_workers=2 (GPU: 4)", loader_without_workers, ("PD101",)),
    Fault("slow-transform", ("PD101",), "three ops in place of Python", slow_transform, ("PD101",)),
    Fault("recompilation", ("PD108",), "dynamic=True", recompilation, ("PD108",)),
    Fault("tiny-ops", ("PD104",), "one op for all rows", tiny_ops, ("PD104",)),
    Fault("for-loop-optimizer", ("PD303", "PD104"), "fused=True", for_loop_optimizer, ("PD303",)),
    Fault("gradients-to-zeros", ("PD304", "PD104"), "set_to_none=True", gradients_to_zeros, ("PD304",)),
    Fault("unfused-gelu", ("PD301",), "functional.gelu", unfused_gelu, ()),
    Fault("item-each-step", ("PD102",), "losses stay on the GPU", item_each_step),
    Fault("pageable-copies", ("PD105", "PD102"), "pin_memory=True, non_blocking=True", pageable_copies),
    Fault("mask-made-on-host", ("PD106", "PD102"), "device=", mask_made_on_host),
    Fault("fp32-gemm", ("PD201",), 'set_float32_matmul_precision("high")', fp32_gemm),
    Fault("misaligned-vocabulary", ("PD202",), "50,304 words", misaligned_vocabulary),
)
