"""Fraud detection with a LightningModule-like class; AUROC is shown in the progress bar.

    python lit_fraud.py
"""
import time
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def roc_auc_score(y_true, y_score):
    order = np.argsort(y_score, kind="mergesort")
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1)
    positive = y_true == 1
    n_pos, n_neg = positive.sum(), (~positive).sum()
    return (ranks[positive].sum() - n_pos * (n_pos + 1) / 2) / max(n_pos * n_neg, 1)


class FraudModule(nn.Module):
    def __init__(self, features=60, hidden=192):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.LayerNorm(hidden),
            nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 1),
        )
        self.scores, self.targets = [], []
        self.logged = {}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        self.scores.append(torch.sigmoid(logits).detach().numpy())
        self.targets.append(y.numpy())
        self.log("auroc", roc_auc_score(np.concatenate(self.targets), np.concatenate(self.scores)))
        return loss

    def on_train_epoch_end(self, epoch):
        print(f"epoch {epoch}: auroc {self.logged['auroc']:.4f}")

    def log(self, name, value):
        self.logged[name] = value


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs, self.times = max_epochs, []

    def fit(self, module, loader):
        optimizer = module.configure_optimizers()
        start = time.perf_counter()
        for epoch in range(self.max_epochs):
            for batch_idx, batch in enumerate(loader):
                optimizer.zero_grad()
                loss = module.training_step(batch, batch_idx)
                loss.backward()
                optimizer.step()
                now = time.perf_counter()
                self.times.append(now - start)
                start = now
            module.on_train_epoch_end(epoch)
        print(f"median step {median(self.times[10:]) * 1e3:.2f} ms")


torch.manual_seed(0)
x = torch.randn(256 * 130, 60)
y = (x[:, :5].sum(1) + torch.randn(len(x)) > 3).float()
loader = DataLoader(TensorDataset(x, y), batch_size=256, shuffle=True, drop_last=True,
                    collate_fn=lambda rows: [torch.stack(column) for column in zip(*rows)])
Trainer(1).fit(FraudModule(), loader)
