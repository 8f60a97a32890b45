"""A tower of residual convolutions over boards, as networks for games have it; policy and value heads."""
import argparse
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, relu
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(4, channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(4, channels)

    def forward(self, x):
        y = relu(self.first_norm(self.first(x)))  # planted
        return relu(x + self.second_norm(self.second(y)))  # planted


class BoardNet(nn.Module):
    def __init__(self, channels=24, depth=7, recompute=False):
        super().__init__()
        self.recompute = recompute
        self.stem = nn.Conv2d(8, channels, 3, padding=1)
        self.tower = nn.ModuleList([Residual(channels) for _ in range(depth)])
        self.policy = nn.Conv2d(channels, 1, 1)
        self.value = nn.Linear(channels, 1)

    def forward(self, boards):
        x = self.stem(boards)
        for block in self.tower:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.policy(x).flatten(1), self.value(x.mean((2, 3))).squeeze(1)


def learn(net, optimizer, boards, moves, results):
    policy, value = net(boards)
    loss = cross_entropy(policy, moves) + mse_loss(value, results)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
arguments = parser.parse_args()
torch.manual_seed(0)
games = int(48 * arguments.scale)
net = BoardNet(recompute=arguments.fixed).to(arguments.device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
boards = torch.randn(games, 8, 19, 19, device=arguments.device)
moves = torch.randint(361, (games,), device=arguments.device)
results = torch.rand(games, device=arguments.device) * 2 - 1
losses, stamps = [], []
for _ in range(22):
    stamps.append(time.perf_counter_ns())
    losses.append(learn(net, optimizer, boards, moves, results))
print("step_ns", (time.perf_counter_ns() - stamps[8]) // 14)
print("loss", losses[-1])
