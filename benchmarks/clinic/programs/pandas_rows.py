"""House prices from a data frame."""
import argparse
import time

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


def make_frame(rows=4000, columns=24, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, columns)), columns=[f"f{i}" for i in range(columns)])
    frame["price"] = frame.sum(axis=1) + rng.normal(size=rows)
    return frame


class HouseDataset(Dataset):
    def __init__(self, df):
        self.df = df
        self.features = [c for c in df.columns if c != "price"]

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]  # planted
        x = torch.tensor(row[self.features].values, dtype=torch.float32)  # planted
        y = torch.tensor(row["price"], dtype=torch.float32)
        return x, y


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    df = make_frame()
    if args.fixed:
        x = torch.tensor(df.drop(columns="price").values, dtype=torch.float32)
        dataset = TensorDataset(x, torch.tensor(df["price"].values, dtype=torch.float32))
    else:
        dataset = HouseDataset(df)
    dataloader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)  # planted

    hidden = max(8, int(1024 * args.scale))
    model = torch.nn.Sequential(
        torch.nn.Linear(24, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, 1),
    ).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loss_fn = torch.nn.HuberLoss()

    for step, (X, y) in enumerate(dataloader):
        if step == 8:
            start = time.perf_counter_ns()
        if step == args.steps:
            break
        X, y = X.to(args.device), y.to(args.device)
        pred = model(X).squeeze(1)
        loss = loss_fn(pred, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss: {loss.item():>7f}")
    print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))


if __name__ == "__main__":
    main()
