"""Neural additive model for house prices: one small network for each feature, and their sum."""
import argparse
import time

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--features", type=int, default=64)
parser.add_argument("--hidden", type=int, default=48)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--lr", type=float, default=1e-3)


class FeatureNet(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.l1 = nn.Linear(1, hidden)
        self.l2 = nn.Linear(hidden, hidden // 2)
        self.l3 = nn.Linear(hidden // 2, 1)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


class NAM(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.nets = nn.ModuleList([FeatureNet(hidden) for _ in range(features)])
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        outs = []
        for i, net in enumerate(self.nets):
            outs.append(net(x[:, i : i + 1]))
        contributions = torch.cat(outs, dim=1)
        return contributions.sum(dim=1) + self.bias, contributions


def houses(n, features):
    g = torch.Generator().manual_seed(0)
    x = torch.rand(n, features, generator=g) * 2 - 1
    w = torch.randn(features, generator=g)
    y = (torch.sin(3 * x) * w).sum(1) + 0.3 * (x**2).sum(1) + 0.1 * torch.randn(n, generator=g)
    return x, (y - y.mean()) / y.std()


def run(args):
    torch.manual_seed(0)
    x, y = houses(20_000, args.features)
    model = NAM(args.features, args.hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)
    loss_fn = nn.MSELoss()
    times = []
    cpu = time.process_time()
    for step in range(args.steps):
        t = time.perf_counter()
        idx = torch.randint(0, len(x), (args.batch_size,))
        pred, contributions = model(x[idx])
        loss = loss_fn(pred, y[idx]) + 1e-4 * contributions.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - t)
        if step % 100 == 0:
            print(f"step {step:4d} loss {loss.item():.4f}")
    cpu = time.process_time() - cpu
    with torch.no_grad():
        pred, _ = model(x[:2000])
        print(f"R2 {1 - ((pred - y[:2000]) ** 2).mean() / y[:2000].var():.3f}")
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {cpu:.2f} s")


if __name__ == "__main__":
    run(parser.parse_args())
