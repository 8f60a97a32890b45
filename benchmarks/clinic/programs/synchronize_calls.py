"""Times each phase of a block with torch.cuda.synchronize, and forgot to take it out."""
import argparse
import time
from collections import defaultdict
from contextlib import contextmanager

import torch
from torch import nn

TIMES = defaultdict(float)


@contextmanager
def phase(name, device, wait):
    begin = time.perf_counter()
    yield
    if wait and device == "cuda":
        torch.cuda.synchronize()  # planted
    TIMES[name] += time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    width, wait, steps = max(8, int(512 * args.scale)), not args.fixed, 60
    model = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU()) for _ in range(16))
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(512, width, device=args.device)
    for step in range(steps):
        if step == 8:
            start = time.perf_counter_ns()
        h = x
        for block in model:
            with phase("forward", args.device, wait):
                h = block(h)
        with phase("backward", args.device, wait):
            h.square().mean().backward()
        with phase("update", args.device, wait):
            optimizer.step()
            optimizer.zero_grad()
    if args.device == "cuda":
        torch.cuda.synchronize()
    elapsed = time.perf_counter_ns() - start
    print(dict(TIMES))
    print("step_ns", elapsed // (steps - 8))


if __name__ == "__main__":
    main()
