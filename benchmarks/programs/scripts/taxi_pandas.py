"""Predict the fare of a taxi ride from a table of trips (synthetic)."""
import argparse
import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def load_trips(n):
    rng = np.random.default_rng(3)
    df = pd.DataFrame({
        "distance": rng.gamma(2.0, 3.0, n),
        "duration": rng.gamma(3.0, 5.0, n),
        "passengers": rng.integers(1, 6, n),
        "hour": rng.integers(0, 24, n),
        "weekday": rng.integers(0, 7, n),
        "zone_from": rng.integers(0, 260, n),
        "zone_to": rng.integers(0, 260, n),
        "tip": rng.random(n),
    })
    df["fare"] = 3 + 2.5 * df.distance + 0.4 * df.duration + rng.normal(0, 1, n)
    return df


class TripDataset(Dataset):
    numeric = ["distance", "duration", "passengers", "hour", "weekday", "tip"]

    def __init__(self, df):
        self.df = df

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        x = torch.tensor(row[self.numeric].values.astype("float32"))
        zones = torch.tensor([int(row["zone_from"]), int(row["zone_to"])])
        y = torch.tensor([row["fare"]], dtype=torch.float32)
        return x, zones, y


class FareNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.zone = nn.Embedding(260, 16)
        self.net = nn.Sequential(nn.Linear(6 + 32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, x, zones):
        return self.net(torch.cat([x, self.zone(zones).flatten(1)], dim=1))


def train(args):
    df = load_trips(args.steps * args.batch)
    loader = DataLoader(TripDataset(df), batch_size=args.batch, shuffle=True, drop_last=True)
    model = FareNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loss_fn = nn.MSELoss()
    times, last, total = [], time.perf_counter(), 0.0
    for i, (x, zones, y) in enumerate(loader):
        optimizer.zero_grad()
        pred = model(x, zones)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if (i + 1) % 25 == 0:
            print(f"[{i + 1}/{len(loader)}] mse {total / 25:.1f}")
            total = 0.0
        times.append(time.perf_counter() - last)
        last = time.perf_counter()
    print(f"median step {np.median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--lr", type=float, default=1e-3)
    train(p.parse_args())
