"""Long-range forecast of solar production: a small transformer with series decomposition in each layer."""
import math
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    seq_len: int = 168
    pred_len: int = 24
    channels: int = 8
    d_model: int = 64
    n_heads: int = 4
    e_layers: int = 2
    kernel: int = 25
    batch: int = 32
    steps: int = 40


def make_series(hours=6000, channels=8):
    rng = np.random.default_rng(1)
    t = np.arange(hours)[:, None]
    day = np.clip(np.sin(2 * np.pi * (t / 24 + rng.random(channels))), 0, None)
    season = 1 + 0.4 * np.sin(2 * np.pi * t / 2000)
    return torch.from_numpy((day * season + 0.05 * rng.standard_normal((hours, channels))).astype("float32"))


class SeriesDecomp(nn.Module):
    """Moving average for the trend, and what remains for the season."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        half = (self.kernel - 1) // 2
        front, end = x[:, :1].expand(-1, half, -1), x[:, -1:].expand(-1, half, -1)
        padded = torch.cat([front, x, end], dim=1)
        trend = padded.unfold(1, self.kernel, 1).mean(-1)
        return x - trend, trend


class EncoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.n_heads
        self.qkv = nn.Linear(cfg.d_model, 3 * cfg.d_model)
        self.out = nn.Linear(cfg.d_model, cfg.d_model)
        self.ff = nn.Sequential(nn.Linear(cfg.d_model, 256), nn.GELU(), nn.Linear(256, cfg.d_model))
        self.decomp1, self.decomp2 = SeriesDecomp(cfg.kernel), SeriesDecomp(cfg.kernel)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x, _ = self.decomp1(x + self.out(a))
        x, _ = self.decomp2(x + self.ff(x))
        return x


class Forecaster(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(cfg.channels, cfg.d_model)
        pos = torch.arange(cfg.seq_len)[:, None] * torch.exp(torch.arange(0, cfg.d_model, 2) * (-math.log(1e4) / cfg.d_model))
        self.register_buffer("pos", torch.stack([pos.sin(), pos.cos()], -1).flatten(1))
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.e_layers))
        self.norm = nn.LayerNorm(cfg.d_model)
        self.head = nn.Linear(cfg.seq_len, cfg.pred_len)
        self.proj = nn.Linear(cfg.d_model, cfg.channels)

    def forward(self, x):
        h = self.embed(x) + self.pos
        for layer in self.layers:
            h = layer(h)
        return self.proj(self.head(self.norm(h).transpose(1, 2)).transpose(1, 2))


def get_batch(series, cfg):
    start = torch.randint(0, len(series) - cfg.seq_len - cfg.pred_len, (cfg.batch,))
    idx = start[:, None] + torch.arange(cfg.seq_len + cfg.pred_len)
    window = series[idx]
    return window[:, : cfg.seq_len], window[:, cfg.seq_len :]


def train(cfg):
    torch.manual_seed(7)
    series = make_series(channels=cfg.channels)
    model = Forecaster(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    times, cpu = [], time.process_time()
    for step in range(cfg.steps):
        began = time.perf_counter()
        x, y = get_batch(series, cfg)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        if step % 20 == 0:
            print(f"step {step}: mse {loss.item():.4f}")
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    train(Config())
