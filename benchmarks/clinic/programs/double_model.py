"""Tabular data from numpy; the model was made double when it complained about types."""
import argparse
import time

import numpy as np
import torch
from torch import nn


def load(rows, features):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, features))
    return x, (x[:, :8].sum(axis=1, keepdims=True) > 0).astype(float)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    cuda = args.device == "cuda"
    width, batch = max(8, int((2048 if cuda else 256) * args.scale)), 8192 if cuda else 512
    x, y = load(batch * 4, 64)
    x, y = torch.from_numpy(x).to(args.device), torch.from_numpy(y).to(args.device)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    ).to(args.device)
    if args.fixed:
        x, y = x.float(), y.float()
    else:
        model = model.double()  # planted  (RuntimeError: mat1 and mat2 must have the same dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(60):
        if step == 8:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter_ns()
        part = slice(batch * (step % 4), batch * (step % 4 + 1))
        loss = criterion(model(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start) // 52)


if __name__ == "__main__":
    main()
