"""Programs whose memory one thing fills: the function that is named, and the peak after the advice was followed.

The peak is that of the raw events of the recording, before and after; what was promised has to hold it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import perfdoctor
from perfdoctor.report.finding import Finding

pytestmark = pytest.mark.process

FRAME = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.checkpoint import checkpoint

{body}
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True, with_modules=True,
             record_shapes=True) as profiler:
    train = prepare()
    for number in range(6):
        with record_function(f"ProfilerStep#{{number}}"):
            train()
profiler.export_chrome_trace(sys.argv[1])
"""
BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))

def prepare():
    blocks = nn.ModuleList(Block() for _ in range(8))
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.01)
    x = torch.randn(1024, 256)
    def train():
        h = x
        for block in blocks:
            h = BLOCK
        h.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return train
"""
LOGITS = """
def prepare():
    body, head = nn.Linear(64, 64), nn.Linear(64, 20000)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    x, y = torch.randn(512, 64), torch.randint(20000, (512,))
    def loss_of(rows, classes):
        return F.cross_entropy(head(rows), classes, reduction="sum")
    def train():
        hidden = body(x)
        LOSS
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return train
"""
ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(128, 384)

    def forward(self, x):
        q, k, v = self.qkv(x).view(4, 512, 3, 4, 32).permute(2, 0, 3, 1, 4)
        SCORES
        return x + out.transpose(1, 2).reshape(4, 512, 128)

def prepare():
    layers = nn.Sequential(*(Attention() for _ in range(4)))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    x = torch.randn(4, 512, 128)
    def train():
        layers(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return train
"""
KEPT_GRADIENTS = """
def prepare():
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    x = torch.randn(256, 1024)
    def train():
        BEFORE
        loss = model(x).square().mean()
        MIDDLE
        loss.backward()
        optimizer.step()
        AFTER
    return train
"""
GROWTH = """
def prepare():
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, history = torch.randn(4096, 512), []
    def train():
        output = model(x)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(KEEP)
    return train
"""
OPTIMIZER = """
def prepare():
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, KIND)
    x = torch.randn(64, 2048)
    def train():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return train
"""
PARTS = """
def prepare():
    net = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = [torch.randn(2048, 64) for _ in range(6)]
    def train():
        LOSSES
        optimizer.step()
        optimizer.zero_grad()
    return train
"""
SUM_OF_LOSSES = """total = 0.0
        for x in batches:
            total = total + F.mse_loss(net(x), x) / 6
        total.backward()
"""
EACH_LOSS = """for x in batches:
            (F.mse_loss(net(x), x) / 6).backward()
"""
# Parts of a loss that need each other: of the states of a recurrent net, of the exits of a deep one, of pairs of views.
STATES = """total, state = 0.0, torch.zeros(2048, 64)
        for x in batches:
            state = net(x + state)
            total = total + F.mse_loss(state, x)
        total.backward()
"""
EXITS = """total, h = 0.0, batches[0]
        for x in batches:
            h = net(h)
            total = total + F.mse_loss(h, x)
        total.backward()
"""
CONVOLUTIONS = "nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 8, 3, padding=1))"
VIEWS = """views = torch.stack([net(x) for x in batches])
        F.mse_loss(views, views.mean(0).expand_as(views)).backward()
"""
PIECES = "loss = sum(checkpoint(loss_of, h, c, use_reentrant=False) for h, c in zip(hidden.chunk(8), y.chunk(8))) / 512"


@pytest.fixture
def record(run_program: Callable[..., None], tmp_path: Path) -> Callable[..., Path]:
    """Returns the trace of a program."""

    def run(body: str, name: str = "program") -> Path:
        script, path = tmp_path / f"{name}.py", tmp_path / f"{name}.json"
        script.write_text(FRAME.format(body=body))
        run_program(script, path)
        return path

    return run


def peak_of(path: Path) -> int:
    """The most that is allocated, by the raw events."""
    events = json.loads(path.read_bytes())["traceEvents"]
    return max(each["args"]["Total Allocated"] for each in events if each["name"] == "[memory]")


def memory_findings(path: Path) -> list[Finding]:
    """The findings on memory."""
    return [each for each in perfdoctor.analyze(path).findings if each.rule.startswith("PD7")]


@pytest.mark.parametrize(
    ("rule", "bad", "good", "function"),
    [
        pytest.param(
            "PD701",
            BLOCKS.replace("BLOCK\n", "block(h)\n"),
            BLOCKS.replace("BLOCK\n", "checkpoint(block, h, use_reentrant=False)\n"),
            "forward",
            id="activations",
        ),
        pytest.param(
            "PD701",
            PARTS.replace("LOSSES\n", SUM_OF_LOSSES),
            PARTS.replace("LOSSES\n", EACH_LOSS),
            "train",
            id="parts of a loss",
        ),
        pytest.param(
            "PD702",
            LOGITS.replace("LOSS\n", "loss = loss_of(hidden, y) / 512\n"),
            LOGITS.replace("LOSS\n", f"{PIECES}\n"),
            "loss_of",
            id="logits",
        ),
        pytest.param(
            "PD703",
            ATTENTION.replace("SCORES\n", "out = torch.softmax(q @ k.transpose(-2, -1) / 32**0.5, dim=-1) @ v\n"),
            ATTENTION.replace("SCORES\n", "out = F.scaled_dot_product_attention(q, k, v)\n"),
            "forward",
            id="scores",
        ),
        pytest.param(
            "PD704",
            OPTIMIZER.replace("KIND", "foreach=True"),
            OPTIMIZER.replace("KIND", "fused=True"),
            "train",
            id="copies",
        ),
        pytest.param(
            "PD705",
            KEPT_GRADIENTS.replace("BEFORE", "pass")
            .replace("MIDDLE", "optimizer.zero_grad()")
            .replace("AFTER", "pass"),
            KEPT_GRADIENTS.replace("BEFORE", "pass")
            .replace("MIDDLE", "pass")
            .replace("AFTER", "optimizer.zero_grad()"),
            "",
            id="gradients",
        ),
        pytest.param(
            "PD707",
            GROWTH.replace("KEEP", "output"),
            GROWTH.replace("KEEP", "output.detach().mean()"),
            "train",
            id="growth",
        ),
    ],
)
def test_the_peak_after_the_advice(rule: str, bad: str, good: str, function: str, record: Callable[..., Path]) -> None:
    before, after = record(bad, "bad"), record(good, "good")
    first, *_ = found = memory_findings(before)
    assert first.rule == rule, [each.title for each in found]
    saved_bytes, promised = peak_of(before) - peak_of(after), first.saved_bytes
    assert promised is not None
    # A fiftieth of the peak for what a fix makes itself, such as the order in which a block is computed again.
    slack = peak_of(before) // 50
    assert promised.low - slack <= saved_bytes <= promised.high + slack, (saved_bytes, promised)
    if function:  # a trace of torch.profiler alone names the function and where it begins
        assert first.location is not None
        assert first.location.function == function
    assert first.subject not in [each.subject for each in memory_findings(after) if each.rule == rule]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PARTS.replace("LOSSES\n", STATES), id="states"),
        pytest.param(PARTS.replace("LOSSES\n", EXITS), id="exits"),
        pytest.param(
            re.sub(r"nn\.Sequential\(.*", CONVOLUTIONS, PARTS)
            .replace("2048, 64", "16, 8, 64, 64")
            .replace("LOSSES\n", EXITS),
            id="exits of convolutions",
        ),
        pytest.param(PARTS.replace("LOSSES\n", VIEWS), id="views"),
        pytest.param(PARTS.replace("LOSSES\n", EACH_LOSS), id="already"),
    ],
)
def test_parts_of_a_loss_that_need_each_other(program: str, record: Callable[..., Path]) -> None:
    found = memory_findings(record(program))
    assert all("parts of the loss" not in each.advice for each in found)
