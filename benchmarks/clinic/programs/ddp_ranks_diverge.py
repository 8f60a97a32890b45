"""DistributedDataParallel on two ranks; the head is initialised once more after the model was wrapped."""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
options = parser.parse_args()


def build(rank):
    torch.manual_seed(rank)  # other data augmentation on each rank
    model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 16))
    model.to(options.device)
    if options.fixed:
        nn.init.normal_(model[-1].weight, std=0.02)
    wrapped = DistributedDataParallel(model)  # planted
    if not options.fixed:
        nn.init.normal_(model[-1].weight, std=0.02)
    return wrapped


def train(rank, steps=50):
    model = build(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = int(256 * options.scale)
    x = torch.randn(batch, 128, device=options.device)
    y = torch.randint(16, (batch,), device=options.device)
    for step in range(steps):
        if step == 8:
            start = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("loss", loss.item())
        print("step_ns", (time.perf_counter_ns() - start) // (steps - 8))


dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
train(dist.get_rank())
dist.destroy_process_group()
