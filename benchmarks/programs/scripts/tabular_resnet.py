"""ResNet for tables (Gorishniy et al.), batches are slices of shuffled tensors. Early stopping by a validation part."""
import dataclasses
import math
import time

import torch
from torch import nn, Tensor


@dataclasses.dataclass(frozen=True)
class HP:
    d: int = 256
    blocks: int = 4
    batch: int = 512
    epochs: int = 2
    patience: int = 3


def make_data(n=16_000, features=40):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, features, generator=g)
    y = x[:, :5].prod(1) + x[:, 5:10].sin().sum(1) + 0.1 * torch.randn(n, generator=g)
    return x, (y - y.mean()) / y.std()


class Block(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.norm = nn.BatchNorm1d(d)
        self.first, self.second = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.drop(self.first(self.norm(x)).relu()))


class TabResNet(nn.Module):
    def __init__(self, features: int, hp: HP):
        super().__init__()
        self.stem = nn.Linear(features, hp.d)
        self.body = nn.Sequential(*(Block(hp.d) for _ in range(hp.blocks)))
        self.head = nn.Sequential(nn.BatchNorm1d(hp.d), nn.ReLU(), nn.Linear(hp.d, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x))).squeeze(-1)


def evaluate(model, x, y):
    model.eval()
    with torch.inference_mode():
        error = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return error


def main(hp: HP = HP()):
    torch.manual_seed(0)
    x, y = make_data()
    x, y, vx, vy = x[:-2000], y[:-2000], x[-2000:], y[-2000:]
    model = TabResNet(x.shape[1], hp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5, fused=True)
    best, bad, steps = math.inf, 0, []
    for epoch in range(hp.epochs):
        order = torch.randperm(len(x))
        for part in order.split(hp.batch):
            t = time.perf_counter()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[part]), y[part])
            loss.backward()
            optimizer.step()
            steps.append(time.perf_counter() - t)
        error = evaluate(model, vx, vy)
        best, bad = (error, 0) if error < best else (best, bad + 1)
        print(f"epoch {epoch} rmse {error ** 0.5:.4f}")
        if bad >= hp.patience:
            break
    print(f"median step {sorted(steps)[len(steps) // 2] * 1e3:.2f} ms")


main()
