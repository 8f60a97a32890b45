"""Day-ahead load forecasting with a small patch transformer on many meters."""
import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def simulate_meters(n_meters, n_hours, seed=0):
    rng = np.random.default_rng(seed)
    hours = np.arange(n_hours)
    base = rng.gamma(3.0, 1.0, size=(n_meters, 1))
    daily = np.sin(2 * np.pi * (hours / 24 + rng.random((n_meters, 1))))
    weekly = 0.5 * np.sin(2 * np.pi * hours / 168)
    noise = 0.2 * rng.standard_normal((n_meters, n_hours))
    return (base * (1.5 + daily + weekly) + noise).astype(np.float32)


class MeterDataset(Dataset):
    """Windows of (context, horizon) hours of one meter, standardised per meter."""

    def __init__(self, load, context=336, horizon=24):
        self.load = load
        self.context, self.horizon = context, horizon
        self.per_meter = load.shape[1] - context - horizon

    def __len__(self):
        return self.load.shape[0] * self.per_meter

    def __getitem__(self, i):
        meter, start = divmod(i, self.per_meter)
        series = self.load[meter]
        series = (series - np.mean(series)) / (np.std(series) + 1e-6)
        end = start + self.context
        hour = np.arange(start, end) % 24 / 24.0
        x = np.stack([series[start:end], np.sin(2 * np.pi * hour), np.cos(2 * np.pi * hour)], -1)
        y = series[end:end + self.horizon]
        return x.astype(np.float32), y


class PatchTransformer(nn.Module):
    def __init__(self, context=336, horizon=24, patch=24, dim=96, heads=4, layers=2):
        super().__init__()
        self.patch = patch
        n = context // patch
        self.embed = nn.Linear(patch * 3, dim)
        self.pos = nn.Parameter(torch.randn(1, n, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, dim * 2, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(n * dim, horizon)

    def forward(self, x):
        b = x.size(0)
        x = x.reshape(b, -1, self.patch * x.size(-1))
        h = self.encoder(self.embed(x) + self.pos)
        return self.head(h.flatten(1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch-size", type=int, default=64)
    ap.add_argument("--workers", type=int, default=0)
    args = ap.parse_args()
    torch.manual_seed(0)

    load = simulate_meters(40, 24 * 365 * 6)
    split = int(load.shape[1] * 0.9)
    train = DataLoader(MeterDataset(load[:, :split]), batch_size=args.batch_size, shuffle=True,
                       num_workers=args.workers, drop_last=True)
    model = PatchTransformer()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    loss_fn = nn.HuberLoss()
    step, total, t0 = 0, 0.0, time.time()
    model.train()
    for x, y in train:
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step}/{args.steps} huber {loss.item():.4f}")
        if step >= args.steps:
            break
    print(f"{time.time() - t0:.1f} s")


if __name__ == "__main__":
    main()
