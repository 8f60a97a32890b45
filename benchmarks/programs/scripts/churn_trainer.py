"""Customer churn from a table: MLP with entity embeddings, trained by number of updates instead of epochs."""
from __future__ import annotations

import dataclasses
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclasses.dataclass
class TrainerConfig:
    max_steps: int = 120
    batch_size: int = 128
    lr: float = 3e-3
    eval_every: int = 60


def make_table(rows: int = 40_000):
    rng = np.random.default_rng(5)
    numeric = rng.normal(size=(rows, 18)).astype(np.float32)
    numeric = (numeric - numeric.mean(0)) / numeric.std(0)
    categorical = np.stack([rng.integers(0, c, rows) for c in (50, 12, 7, 31)], axis=1)
    churned = (numeric[:, 0] + 0.3 * (categorical[:, 1] > 6) + rng.normal(size=rows) > 1).astype(np.float32)
    return tuple(torch.from_numpy(a) for a in (numeric, categorical, churned))


class ChurnNet(nn.Module):
    def __init__(self, cards=(50, 12, 7, 31), numeric=18, width=256):
        super().__init__()
        self.embs = nn.ModuleList(nn.Embedding(c, min(16, c // 2)) for c in cards)
        total = sum(e.embedding_dim for e in self.embs) + numeric
        self.net = nn.Sequential(
            nn.Linear(total, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numeric, categorical):
        embedded = [emb(categorical[:, i]) for i, emb in enumerate(self.embs)]
        return self.net(torch.cat([numeric, *embedded], dim=1)).squeeze(1)


class Trainer:
    def __init__(self, config: TrainerConfig, model: nn.Module, train_set, valid_set):
        self.config, self.model = config, model
        self.train_loader = DataLoader(train_set, batch_size=config.batch_size, shuffle=True)
        self.valid_loader = DataLoader(valid_set, batch_size=4096)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.criterion = nn.BCEWithLogitsLoss()
        self.history: list[float] = []

    def training_step(self):
        numeric, categorical, target = next(iter(self.train_loader))
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(numeric, categorical), target)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        hits = sum(((self.model(n, c) > 0).float() == t).sum().item() for n, c, t in self.valid_loader)
        self.model.train()
        return hits / len(self.valid_loader.dataset)

    def fit(self):
        for step in range(1, self.config.max_steps + 1):
            began = time.perf_counter()
            loss = self.training_step()
            self.history.append(time.perf_counter() - began)
            if step % self.config.eval_every == 0:
                print(f"step {step}: loss {loss:.4f}, accuracy {self.evaluate():.4f}")
        print(f"median step {1e3 * float(np.median(self.history)):.2f} ms")


if __name__ == "__main__":
    numeric, categorical, churned = make_table()
    cut = 36_000
    train_set = TensorDataset(numeric[:cut], categorical[:cut], churned[:cut])
    valid_set = TensorDataset(numeric[cut:], categorical[cut:], churned[cut:])
    Trainer(TrainerConfig(), ChurnNet(), train_set, valid_set).fit()
