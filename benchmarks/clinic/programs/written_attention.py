"""Encoder layers with attention by its formula, over sequences long enough for their scores to fill memory."""

import argparse
import math
import time

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads, fused):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.heads, self.fused = heads, fused

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # planted
            out = scores.softmax(-1) @ v  # planted
        return x + out.transpose(1, 2).reshape(rows, length, width)


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)

encoder = nn.Sequential(*(Attention(64, 4, args.fixed) for _ in range(3))).to(args.device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.01)
sequences = torch.randn(2, int(640 * args.scale), 64, device=args.device)
for step in range(30):
    if step == 8:
        started = time.perf_counter_ns()
    optimizer.zero_grad()
    loss = encoder(sequences).square().mean()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
print("step_ns", (time.perf_counter_ns() - started) // 22)
