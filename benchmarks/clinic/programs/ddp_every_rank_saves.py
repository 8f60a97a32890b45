"""DDP in which every rank saves the same checkpoint, one after the other, so that the disk is not overrun.

torchrun --nproc-per-node 2 ddp_every_rank_saves.py
"""

import argparse
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, SAVE_EVERY = 48, 8


def save_checkpoint(model, folder, savers):
    for rank in savers:
        if dist.get_rank() == rank:
            torch.save(model.module.state_dict(), os.path.join(folder, f"rank{rank}.pt"))  # planted
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.manual_seed(0)

    words = int(40000 * args.scale)
    model = nn.Sequential(nn.Embedding(words, 128), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))
    model[0].requires_grad_(False)  # pretrained
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    tokens = torch.randint(0, words, (STEPS, 2048), device=device)
    labels = torch.randint(0, 16, (STEPS, 2048), device=device)
    savers = [0] if args.fixed else range(dist.get_world_size())

    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            if step == 8:
                start_ns = time.perf_counter_ns()
            loss = nn.functional.cross_entropy(model(tokens[step]), labels[step])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % SAVE_EVERY == SAVE_EVERY - 1:
                save_checkpoint(model, folder, savers)
        if rank == 0:
            print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
