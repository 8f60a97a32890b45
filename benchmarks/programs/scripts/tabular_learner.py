"""House prices with a Learner and callbacks, in the style of a course.

    python tabular_learner.py
"""
import time
from functools import partial
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Callback:
    order = 0

    def __getattr__(self, name):
        if name.startswith(("before_", "after_")):
            return lambda: None
        raise AttributeError(name)


class Timer(Callback):
    def __init__(self):
        self.times = []

    def before_fit(self):
        self.start = time.perf_counter()

    def after_batch(self):
        now = time.perf_counter()
        self.times.append(now - self.start)
        self.start = now

    def after_fit(self):
        print(f"median step {median(self.times[10:]) * 1e3:.2f} ms")


class Recorder(Callback):
    def before_fit(self):
        self.losses = []

    def after_loss(self):
        self.losses.append(self.learn.loss.detach())

    def after_epoch(self):
        print(f"epoch {self.learn.epoch}: {torch.stack(self.losses).mean():.4f}")
        self.losses.clear()


class Learner:
    def __init__(self, dls, model, loss_func, opt_func, cbs=()):
        self.dls, self.model, self.loss_func, self.opt_func, self.cbs = dls, model, loss_func, opt_func, list(cbs)
        for cb in self.cbs:
            cb.learn = self

    def __call__(self, event):
        for cb in sorted(self.cbs, key=lambda cb: cb.order):
            getattr(cb, event)()

    def one_batch(self, batch):
        self.cats, self.conts, self.y = batch
        self.pred = self.model(self.cats, self.conts)
        self.loss = self.loss_func(self.pred, self.y)
        self("after_loss")
        self.opt.zero_grad()
        self.loss.backward()
        self.opt.step()
        self("after_batch")

    def fit(self, epochs, lr):
        self.opt = self.opt_func(self.model.parameters(), lr=lr)
        self("before_fit")
        for self.epoch in range(epochs):
            for batch in self.dls:
                self.one_batch(batch)
            self("after_epoch")
        self("after_fit")


class TabularModel(nn.Module):
    def __init__(self, sizes, n_cont, layers=(600, 400, 200)):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(n, min(50, (n + 1) // 2)) for n in sizes)
        width = sum(e.embedding_dim for e in self.embeds) + n_cont
        parts = []
        for n in layers:
            parts += [nn.Linear(width, n), nn.ReLU(), nn.BatchNorm1d(n)]
            width = n
        self.layers = nn.Sequential(*parts, nn.Linear(width, 1))

    def forward(self, cats, conts):
        x = torch.cat([e(cats[:, i]) for i, e in enumerate(self.embeds)] + [conts], dim=1)
        return self.layers(x).squeeze(1)


def load(rows=6400, n_cont=20):
    rng = np.random.default_rng(0)
    sizes = [12, 40, 7, 90]
    cats = np.stack([rng.integers(0, n, rows) for n in sizes], axis=1)
    conts = rng.normal(size=(rows, n_cont))
    conts = (conts - conts.mean(0)) / conts.std(0)
    price = conts @ rng.normal(size=n_cont) + rng.normal(size=rows)
    return sizes, TensorDataset(torch.from_numpy(cats), torch.from_numpy(conts), torch.from_numpy(price))


torch.manual_seed(0)
sizes, data = load()
model = TabularModel(sizes, 20).to(torch.float64)
dls = DataLoader(data, batch_size=128, shuffle=True, drop_last=True)
learn = Learner(dls, model, F.mse_loss, partial(torch.optim.Adam, fused=True), [Timer(), Recorder()])
learn.fit(4, 1e-3)
