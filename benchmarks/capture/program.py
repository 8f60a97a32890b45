"""A training program of a chosen step length that times its steps and does not import perfdoctor."""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Blocks, width, batch and optimizer for steps of about 2, 10 and 70 ms on one core. The overhead of recording depends
# on the number of ops, not on time: AdamW updates tensor by tensor on CPUs and has three times the ops of SGD.
SIZES = {
    "2ms": (3, 128, 64, "SGD"),
    "10ms": (6, 512, 112, "SGD"),
    "70ms": (12, 768, 192, "SGD"),
    "10ms-adamw": (6, 512, 96, "AdamW"),
    # For a GPU: kernels that keep it busy for some 20 ms, and kernels that are over before the next is launched.
    "gpu-bound": (12, 4096, 4096, "SGD"),
    "launch-bound": (12, 256, 64, "SGD"),
    "launch-bound-adamw": (12, 256, 64, "AdamW"),
}


def make_model(blocks: int, width: int) -> nn.Module:
    """The MLP of a size."""
    layers = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    """Train, and write wall time and CPU time of this thread, in ns, at the beginning of each iteration."""
    size, steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    device = sys.argv[4] if len(sys.argv) > 4 else "cpu"
    blocks, width, batch, kind = SIZES[size]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make_model(blocks, width).to(device)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(256, width), torch.randint(10, (256,)))
    sampler = torch.randint(256, (steps, batch)).tolist()
    clock: list[tuple[int, int]] = []
    for x, y in DataLoader(data, batch_sampler=sampler):
        clock.append((time.perf_counter_ns(), time.thread_time_ns()))
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(clock, file)


if __name__ == "__main__":
    main()
