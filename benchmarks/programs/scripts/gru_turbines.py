"""Remaining useful life of turbines: two GRU layers over sensor windows that were cut once, before training."""
import argparse
import csv
import io
import os
import tempfile
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class TurbineWindows(Dataset):
    """Gives whole batches: an index is a list of windows."""

    def __init__(self, units=40, cycles=150, sensors=14, window=30):
        g = torch.Generator().manual_seed(9)
        wear = torch.linspace(0, 1, cycles).pow(2)[None, :, None] * torch.rand(units, 1, sensors, generator=g)
        signal = wear + 0.1 * torch.randn(units, cycles, sensors, generator=g)
        self.x = signal.unfold(1, window, 1).permute(0, 1, 3, 2).reshape(-1, window, sensors).contiguous()
        left = torch.arange(cycles - window, -1, -1).float().clamp(max=125) / 125
        self.y = left.repeat(units)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class RUL(nn.Module):
    def __init__(self, sensors=14, hidden=128):
        super().__init__()
        self.gru = nn.GRU(sensors, hidden, num_layers=2, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1]).squeeze(-1)


def one_epoch(model, loader, loss_fn, opt=None):
    total, n = 0.0, 0
    marks = [time.perf_counter()]
    for x, y in loader:
        pred = model(x)
        loss = loss_fn(pred, y)
        if opt is not None:
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        total, n = total + loss.item() * len(y), n + len(y)
        marks.append(time.perf_counter())
    return total / n, [b - a for a, b in zip(marks, marks[1:])]


def cli():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--out", default=os.path.join(tempfile.gettempdir(), "gru_turbines.csv"))
    return p.parse_args()


def main():
    opts = cli()
    torch.manual_seed(0)
    data = TurbineWindows()
    sampler = BatchSampler(RandomSampler(data), opts.batch_size, drop_last=True)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model = RUL()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows, all_steps = io.StringIO(), []
    writer = csv.writer(rows)
    for epoch in range(opts.epochs):
        mse, steps = one_epoch(model, loader, nn.MSELoss(), opt)
        all_steps += steps
        writer.writerow([epoch, f"{mse:.5f}"])
        print(f"epoch {epoch}: rmse {125 * mse ** 0.5:.1f} cycles")
    with open(opts.out, "w") as f:
        f.write(rows.getvalue())
    print(f"median step {sorted(all_steps)[len(all_steps) // 2] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
