"""DDP that once ran on two different cards: the faster one got three quarters of each batch, and still does.

torchrun --nproc-per-node 2 ddp_uneven_batches.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LENGTH = 45, 32, 64


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(500, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.manual_seed(rank)

    shares = (BATCH // 2, BATCH // 2) if args.fixed else (BATCH // 4, 3 * BATCH // 4)
    size = shares[rank]
    model = DistributedDataParallel(Encoder(int(160 * args.scale)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        tokens = torch.randint(0, 500, (size, LENGTH), device=device)
        labels = torch.randint(0, 2, (size,), device=device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)  # planted
        loss.backward()  # planted
        optimizer.step()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
