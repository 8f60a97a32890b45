"""Two processes train one model together, and one of them is late in every step: the other waits for it.

torchrun --nproc-per-node 2 examples/slow_rank.py
perfdoctor run -- torchrun --nproc-per-node 2 examples/slow_rank.py
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def write_log(rank: int, late_rank: int, seconds: float) -> None:
    """One rank writes to a slow file system in every step."""
    if rank == late_rank:
        time.sleep(seconds)


def main() -> None:
    """Train for a few steps on CPUs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--late-rank", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.03)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images = torch.randn(args.steps * args.batch_size * world_size, 64)
    data = TensorDataset(images, (images.sum(1) > 0).long())
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        write_log(rank, args.late_rank, args.seconds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: loss {loss.item():.3f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # torch 2.13 aborts when the interpreter ends before gloo's threads have dropped their last work


if __name__ == "__main__":
    main()
