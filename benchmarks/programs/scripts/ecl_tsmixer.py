"""Electricity load with an all-MLP mixer.

    python ecl_tsmixer.py
"""
import time
from statistics import median

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, length, channels, hidden=128, dropout=0.05):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(length), nn.LayerNorm(channels)
        self.time = nn.Sequential(nn.Linear(length, length), nn.ReLU(), nn.Dropout(dropout))
        self.mix = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))

    def forward(self, x):
        x = x + self.time(self.norm1(x.transpose(1, 2))).transpose(1, 2)
        return x + self.mix(self.norm2(x))


class TSMixer(nn.Module):
    def __init__(self, length=168, horizon=24, channels=64, blocks=3):
        super().__init__()
        self.blocks = nn.Sequential(*[Mixer(length, channels) for _ in range(blocks)])
        self.head = nn.Linear(length, horizon)

    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
        y = self.head(self.blocks((x - mean) / std).transpose(1, 2)).transpose(1, 2)
        return y * std + mean


torch.manual_seed(0)
series = torch.randn(6000, 64).cumsum(0) * 0.05
windows = series.unfold(0, 168 + 24, 1).transpose(1, 2)
model = TSMixer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
times, start = [], time.perf_counter()
for epoch in range(2):
    for index in torch.randperm(len(windows))[: 32 * 60].split(32):
        window = windows[index]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(window[:, :168]), window[:, 168:])
        loss.backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(now - start)
        start = now
    print(f"epoch {epoch}: {loss.item():.4f}")
print(f"median step {median(times[10:]) * 1e3:.2f} ms")
