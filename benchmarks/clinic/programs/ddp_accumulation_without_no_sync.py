"""Gradient accumulation under DDP: every micro-batch reduces the gradients.

torchrun --nproc-per-node 2 ddp_accumulation_without_no_sync.py
"""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, MICRO_BATCHES, BATCH = 45, 4, 16


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

    width = int(384 * args.scale)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 50))
    model = DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    inputs = torch.randn(STEPS, MICRO_BATCHES, BATCH, width, device=device)
    labels = torch.randint(0, 50, (STEPS, MICRO_BATCHES, BATCH), device=device)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        for micro in range(MICRO_BATCHES):
            is_last = micro == MICRO_BATCHES - 1
            with model.no_sync() if args.fixed and not is_last else contextlib.nullcontext():
                loss = nn.functional.cross_entropy(model(inputs[step, micro]), labels[step, micro]) / MICRO_BATCHES  # planted
                loss.backward()  # planted
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))
    dist.destroy_process_group()
    time.sleep(0.5)  # torch aborts where the interpreter ends before the threads of gloo


if __name__ == "__main__":
    main()
