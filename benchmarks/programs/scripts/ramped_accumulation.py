"""Masked autoencoding of vectors with an effective batch that doubles as training goes on."""
import argparse
import time
from statistics import median

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=60, help="optimizer steps")
p.add_argument("--micro_batch", type=int, default=32)
args = p.parse_args()


def accumulation_at(step):
    """1, 2, 4, then 8 micro-batches."""
    return 2 ** min(3, step // 10)


class MaskedMLP(nn.Module):
    def __init__(self, d=256, width=512, depth=4):
        super().__init__()
        layers = [nn.Linear(d, width)]
        for _ in range(depth):
            layers += [nn.GELU(), nn.Linear(width, width)]
        self.net = nn.Sequential(*layers, nn.GELU(), nn.Linear(width, d))

    def forward(self, x):
        mask = (torch.rand_like(x) > 0.25).float()
        return ((self.net(x * mask) - x) ** 2 * (1 - mask)).mean()


torch.manual_seed(0)
total = sum(accumulation_at(s) for s in range(args.steps))
data = TensorDataset(torch.randn(total * args.micro_batch, 256))
loader = DataLoader(data, batch_size=args.micro_batch, shuffle=True, drop_last=True)
model = MaskedMLP()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
step, micro, times = 0, 0, []
t = time.perf_counter()
for (x,) in loader:
    k = accumulation_at(step)
    loss = model(x) / k
    loss.backward()
    micro += 1
    if micro == k:
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        times.append((now - t) / k)
        t = now
        if step % 10 == 0:
            print(f"step {step} accumulation {k} loss {loss.item() * k:.4f}")
        step, micro = step + 1, 0
print(f"median step {median(times[8:]) * 1e3:.2f} ms")
