"""Mixer on patches. The thread settings were copied from the cluster's job template."""
import argparse
import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, dim=192, depth=3):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 8, stride=8)
        self.blocks = nn.Sequential(*[MixerBlock(64, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


def run():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    images, labels = torch.randn(16 * args.steps, 3, 64, 64), torch.randint(0, 10, (16 * args.steps,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    net = Mixer()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    times = []
    t = time.perf_counter()
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        u = time.perf_counter()
        times.append(u - t)
        t = u
    print(f"median step {median(times[5:]) * 1e3:.2f} ms")


run()
