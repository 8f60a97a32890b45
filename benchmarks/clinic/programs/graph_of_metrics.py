"""Forecast ten series with one network each and stop at a horizon; the running error keeps every window's graph."""
import argparse
import time
from collections import defaultdict

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, history=96, horizon=24, width=192):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(history, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.outer = nn.Linear(width, horizon)

    def forward(self, window):
        return self.outer(self.inner(window))


class Metrics:
    def __init__(self, fixed):
        self.fixed, self.sums = fixed, defaultdict(float)

    def update(self, name, value):
        self.sums[name] += value.item() if self.fixed else value  # planted


def run(args):
    torch.manual_seed(0)
    net = Forecaster().to(args.device)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    metrics = Metrics(args.fixed)
    rows = int(3072 * args.scale)
    series = torch.randn(rows, 120, device=args.device).cumsum(1)
    for step in range(50):
        if step == 8:
            start = time.perf_counter_ns()
        predicted = net(series[:, :96])
        error = (predicted - series[:, 96:]).abs().mean()
        optimizer.zero_grad()
        error.backward(retain_graph=not args.fixed)
        optimizer.step()
        with torch.set_grad_enabled(not args.fixed):
            metrics.update("error", error)  # planted
    print("step_ns", (time.perf_counter_ns() - start) // 42)
    print("error", float(torch.as_tensor(metrics.sums["error"]).detach()) / 50)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--scale", type=float, default=1.0)
    arguments.add_argument("--fixed", action="store_true")
    run(arguments.parse_args())
