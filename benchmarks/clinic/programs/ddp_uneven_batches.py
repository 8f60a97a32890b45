"""DDP over sentences sorted by length: each rank takes one half, so one of them gets all the long ones.

torchrun --nproc-per-node 2 ddp_uneven_batches.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 45, 8


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(500, width)
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU())
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).mean(1))


def make_batches(lengths):
    """Batches of sentences of equal length; a sentence is made of random words."""
    return [(torch.randint(0, 500, (BATCH, length)), torch.randint(0, 2, (BATCH,))) for length in lengths]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.manual_seed(rank)

    lengths = torch.linspace(16, 160, STEPS * ranks).int().tolist()
    mine = lengths[rank::ranks] if args.fixed else lengths[rank * STEPS : (rank + 1) * STEPS]  # planted
    order = torch.randperm(STEPS, generator=torch.Generator().manual_seed(0)).tolist()
    batches = make_batches([mine[i] for i in order])
    model = DistributedDataParallel(Encoder(int(192 * args.scale)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    for step, (tokens, labels) in enumerate(batches):
        if step == 8:
            start_ns = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
