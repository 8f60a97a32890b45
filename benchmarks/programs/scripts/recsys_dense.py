"""
Two-tower click model. Users and items are hashed, history is an EmbeddingBag.
Synthetic log in place of the real one.

usage: python recsys_dense.py [--steps 60]
"""
import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


@dataclass
class Config:
    n_users: int = 120_000
    n_items: int = 80_000
    dim: int = 24
    hist_len: int = 20
    batch_size: int = 256
    lr: float = 1e-3
    steps: int = 60


class ClickLog:
    """Iterates over random impressions: user, history, candidate, label."""

    def __init__(self, cfg: Config):
        rng = np.random.default_rng(7)
        n = 40_000
        pop = rng.zipf(1.3, size=n * 4) % cfg.n_items
        self.user = torch.from_numpy(rng.integers(0, cfg.n_users, n))
        self.item = torch.from_numpy(pop[:n].astype(np.int64))
        self.hist = torch.from_numpy(rng.choice(pop, size=(n, cfg.hist_len)).astype(np.int64))
        self.label = torch.from_numpy((rng.random(n) < 0.2).astype(np.float32))
        self.cfg = cfg

    def __iter__(self):
        perm = torch.randperm(len(self.user))
        for s in range(self.cfg.steps):
            sel = perm[(s * self.cfg.batch_size) % (len(perm) - self.cfg.batch_size):][: self.cfg.batch_size]
            yield self.user[sel], self.hist[sel], self.item[sel], self.label[sel]


class Tower(nn.Sequential):
    def __init__(self, d_in: int, d_out: int):
        super().__init__(nn.Linear(d_in, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, d_out))


class TwoTower(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.user_emb = nn.Embedding(cfg.n_users, cfg.dim)
        self.hist_emb = nn.EmbeddingBag(cfg.n_items, cfg.dim, mode="sum")
        self.item_emb = nn.Embedding(cfg.n_items, cfg.dim)
        self.user_tower = Tower(2 * cfg.dim, 32)
        self.item_tower = Tower(cfg.dim, 32)
        for table in (self.user_emb, self.hist_emb, self.item_emb):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, user, hist, item):
        u = self.user_tower(torch.cat([self.user_emb(user), self.hist_emb(hist)], 1))
        v = self.item_tower(self.item_emb(item))
        return (u * v).sum(-1)


def train(cfg: Config) -> list[float]:
    torch.manual_seed(0)
    model = TwoTower(cfg)
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    bce = nn.BCEWithLogitsLoss()
    laps: list[float] = []
    t0 = time.perf_counter()
    for step, (user, hist, item, label) in enumerate(ClickLog(cfg)):
        logit = model(user, hist, item)
        loss = bce(logit, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t1 = time.perf_counter()
        laps.append(t1 - t0)
        t0 = t1
        if step % 25 == 0:
            print(f"[{step:4d}] bce={loss.item():.4f}")
    return laps


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=Config.steps)
    laps = train(Config(steps=ap.parse_args().steps))
    print(f"median step {1e3 * float(np.median(laps[8:])):.2f} ms")
