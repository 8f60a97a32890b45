"""Feed-forward block with a home-made GELU, gradients accumulated over two micro-batches."""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))  # planted


class FeedForward(nn.Module):
    def __init__(self, width, fixed):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.fixed = fixed

    def forward(self, x):
        h = self.up(x)
        h = F.gelu(h, approximate="tanh") if self.fixed else gelu(h)  # planted
        return self.down(h)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    cuda = args.device == "cuda"
    width, tokens = max(8, int((2048 if cuda else 96) * args.scale)), 8192 if cuda else 1024
    block = FeedForward(width, args.fixed).to(args.device)
    optimizer = torch.optim.SGD(block.parameters(), lr=0.01, fused=True)
    data = torch.randn(args.accumulate, tokens, width, device=args.device)
    for step in range(args.steps):
        if step == 8:
            if cuda:
                torch.cuda.synchronize()
            start = time.perf_counter_ns()
        for x in data:
            with torch.autocast(args.device, torch.bfloat16, enabled=cuda):
                loss = (block(x) - x).float().square().mean() / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))


main()
