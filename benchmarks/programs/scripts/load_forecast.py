# electricity load forecasting, TCN + attention pooling
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)  # same as numpy
np.random.seed(0)
torch.manual_seed(0)

HISTORY, HORIZON, METERS = 168, 24, 40


def read_load(hours=5000):
    t = np.arange(hours)[:, None]
    phase = np.random.rand(METERS) * 2 * np.pi
    load = 2 + np.sin(2 * np.pi * t / 24 + phase) + 0.3 * np.sin(2 * np.pi * t / 168) + 0.1 * np.random.randn(hours, METERS)
    return (load - load.mean(0)) / load.std(0)


def windows(load, batch, rng):
    while True:
        start = rng.integers(0, len(load) - HISTORY - HORIZON, batch)
        idx = start[:, None] + np.arange(HISTORY + HORIZON)
        w = torch.from_numpy(load[idx])
        yield w[:, :HISTORY], w[:, HISTORY:]


class Block(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(ch, ch, 3, dilation=dilation)
        self.mix = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        return x + self.mix(F.gelu(self.conv(F.pad(x, (self.pad, 0)))))


class TCN(nn.Module):
    def __init__(self, ch=64):
        super().__init__()
        self.inp = nn.Conv1d(METERS, ch, 1)
        self.blocks = nn.ModuleList(Block(ch, 2**i) for i in range(5))
        self.score = nn.Linear(ch, 1)
        self.out = nn.Linear(ch, HORIZON * METERS)

    def forward(self, x):
        h = self.inp(x.transpose(1, 2))
        for block in self.blocks:
            h = block(h)
        h = h.transpose(1, 2)
        w = self.score(h).softmax(1)
        return self.out((w * h).sum(1)).view(-1, HORIZON, METERS)


load = read_load()
stream = windows(load, 24, np.random.default_rng(1))
net = TCN()
opt = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
ms, smooth = [], None
for i, (past, future) in zip(range(50), stream):
    t0 = time.perf_counter()
    loss = F.smooth_l1_loss(net(past), future)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ms.append((time.perf_counter() - t0) * 1e3)
    smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
    if i % 20 == 0:
        print(f"{i:4d} {smooth:.4f}")
print(f"median step {np.median(ms):.2f} ms")
