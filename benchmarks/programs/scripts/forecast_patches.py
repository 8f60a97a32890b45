"""Load forecasting: a patch transformer over windows of many meters."""
import time

import numpy as np
import torch
from torch import nn

CONTEXT, HORIZON, PATCH = 336, 48, 16


class Windows:
    """Windows of standardised series, cut out of one tensor by index arithmetic."""

    def __init__(self, meters=64, hours=24 * 120):
        rng = np.random.default_rng(5)
        hour = np.arange(hours)
        daily = np.sin(2 * np.pi * (hour[None] / 24 + rng.random((meters, 1))))
        weekly = 0.4 * np.sin(2 * np.pi * (hour[None] / 168 + rng.random((meters, 1))))
        load = daily + weekly + 0.2 * rng.standard_normal((meters, hours))
        load = (load - load.mean(1, keepdims=True)) / load.std(1, keepdims=True)
        self.views = torch.from_numpy(load.astype(np.float32)).unfold(1, CONTEXT + HORIZON, 1)

    def draw(self, batch):
        meter = torch.randint(0, self.views.shape[0], (batch,))
        start = torch.randint(0, self.views.shape[1], (batch,))
        window = self.views[meter, start]
        return window[:, :CONTEXT], window[:, CONTEXT:]


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchForecaster(nn.Module):
    def __init__(self, dim=128, heads=8, depth=3):
        super().__init__()
        self.embed = nn.Linear(PATCH, dim)
        self.position = nn.Parameter(torch.zeros(CONTEXT // PATCH, dim))
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(depth)))
        self.head = nn.Linear(dim * (CONTEXT // PATCH), HORIZON)

    def forward(self, x):
        tokens = self.embed(x.unflatten(1, (-1, PATCH))) + self.position
        return self.head(self.layers(tokens).flatten(1))


def main(steps=70, batch=64):
    torch.manual_seed(9)
    windows, model = Windows(), PatchForecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    smooth = torch.zeros(())
    times = np.zeros(steps)
    for step in range(steps):
        begin = time.perf_counter()
        past, future = windows.draw(batch)
        loss = nn.functional.huber_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth.lerp_(loss.detach(), 0.1)
        times[step] = time.perf_counter() - begin
    print(f"smoothed loss {smooth.item():.4f}")
    print(f"median step {np.median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
