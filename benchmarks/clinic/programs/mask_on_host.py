"""Causal mixing: the mask is built on the host in every layer."""
import argparse
import time

import torch
from torch import nn


class CausalMix(nn.Module):
    def __init__(self, width, fixed):
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.fixed = fixed

    def forward(self, x):
        length = x.shape[0]
        if self.fixed:
            mask = torch.ones(length, length, device=x.device).tril()
        else:
            mask = torch.ones(length, length).tril().to(x.device)  # planted
        return torch.relu(self.proj(mask @ x / length))


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
length, width = (1024, 512) if args.device == "cuda" else (32, 32)
model = nn.Sequential(*[CausalMix(max(8, int(width * args.scale)), args.fixed) for _ in range(8)]).to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randn(length, max(8, int(width * args.scale)), device=args.device)
for step in range(50):
    if step == 8:
        start = time.perf_counter_ns()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
print("step_ns", (time.perf_counter_ns() - start) // 42)
