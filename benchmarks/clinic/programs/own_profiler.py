"""A sequence model that is still under the profiler of last week."""

import argparse
import contextlib
import time

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

STEPS = 45


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.body(self.norms[1](x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    width = int(96 * args.scale)
    model = nn.Sequential(*[Block(width) for _ in range(4)], nn.Linear(width, 32)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x = torch.randn(STEPS, 4, 32, width, device=args.device)
    y = torch.randint(0, 32, (STEPS, 4 * 32), device=args.device)

    profiler = contextlib.nullcontext()
    if not args.fixed:
        profiler = profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True)  # planted
    with profiler:
        for step in range(STEPS):
            if step == 8:
                start_ns = time.perf_counter_ns()
            loss = nn.functional.cross_entropy(model(x[step]).flatten(0, 1), y[step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
