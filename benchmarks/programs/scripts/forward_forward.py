"""Forward-forward: each layer has a goodness of its own, trained by its own optimizer, one layer after the other."""
import argparse
import time
from statistics import median

import torch
import torch.nn as nn
from torch.optim import Adam

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--width", type=int, default=500)
args = parser.parse_args()


def overlay(x, y):
    x = x.clone()
    x[:, :10] = 0.0
    x[range(len(x)), y] = x.max()
    return x


class Layer(nn.Linear):
    def __init__(self, n_in, n_out):
        super().__init__(n_in, n_out)
        self.opt = Adam(self.parameters(), lr=0.03)
        self.times = []

    def forward(self, x):
        x = x / (x.norm(2, 1, keepdim=True) + 1e-4)
        return torch.relu(super().forward(x))

    def train_layer(self, pos, neg, epochs):
        for _ in range(epochs):
            t = time.perf_counter()
            g_pos = self.forward(pos).pow(2).mean(1)
            g_neg = self.forward(neg).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([2 - g_pos, g_neg - 2]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.times.append(time.perf_counter() - t)
        return self.forward(pos).detach(), self.forward(neg).detach()


torch.manual_seed(1)
x, y = torch.rand(2000, 784), torch.randint(0, 10, (2000,))
pos, neg = overlay(x, y), overlay(x, y[torch.randperm(len(y))])
layers = [Layer(784, args.width), Layer(args.width, args.width), Layer(args.width, args.width)]
for i, layer in enumerate(layers):
    print("training layer", i)
    pos, neg = layer.train_layer(pos, neg, args.steps)
print(f"median step {median(t for layer in layers for t in layer.times[8:]) * 1e3:.2f} ms")
