"""A small physics-informed network for u'' + u = 0, trained with L-BFGS."""
import argparse
import time
from statistics import median

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=45)
parser.add_argument("--points", type=int, default=4000)
args = parser.parse_args()
torch.manual_seed(0)


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x)


net = nn.Sequential(nn.Linear(1, 64), Sine(), nn.Linear(64, 64), Sine(), nn.Linear(64, 64), Sine(), nn.Linear(64, 1))
x = torch.linspace(0, 6.28, args.points).reshape(-1, 1).requires_grad_(True)
x0 = torch.zeros(1, 1, requires_grad=True)
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, history_size=20, tolerance_grad=0, tolerance_change=0)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def residual():
    u = net(x)
    return derivative(derivative(u, x), x) + u


def closure():
    optimizer.zero_grad()
    u0 = net(x0)
    loss = residual().pow(2).mean() + (u0 - 0.0).pow(2).sum() + (derivative(u0, x0) - 1.0).pow(2).sum()
    loss.backward()
    return loss


times = []
for it in range(args.steps):
    t0 = time.perf_counter()
    loss = optimizer.step(closure)
    times.append(time.perf_counter() - t0)
    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item():.3e}")
print(f"median step {median(times[5:]) * 1e3:.2f} ms")
