"""Gradient accumulation over micro-batches of one large batch."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)

ACCUMULATE = 6
net = nn.Sequential(
    nn.Linear(40, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU(), nn.Linear(384, 5)
).to(args.device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
rows = int(2048 * args.scale)
micro_batches = [
    (torch.randn(rows, 40, device=args.device), torch.randint(5, (rows,), device=args.device)) for _ in range(ACCUMULATE)
]
for step in range(24):
    if step == 8:
        start = time.perf_counter_ns()
    optimizer.zero_grad()
    total = 0.0
    for x, y in micro_batches:
        loss = F.cross_entropy(net(x), y) / ACCUMULATE  # planted
        if args.fixed:
            loss.backward()
        total += loss.detach() if args.fixed else loss  # planted
    if not args.fixed:
        total.backward()  # planted
    optimizer.step()
print("loss", total.item())
print("step_ns", (time.perf_counter_ns() - start) // 16)
