"""DDP with buckets of 10 kB, copied from a job on another network; the script starts its ranks itself."""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, RANKS = 45, 2


def train(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=rank, world_size=RANKS)
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = int(64 * args.scale)
    layers = []
    for _ in range(24):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 8)).to(device)
    model = DistributedDataParallel(model, bucket_cap_mb=25 if args.fixed else 0.01)  # planted
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        x = torch.randn(256, width, device=device)
        y = torch.randint(0, 8, (256,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    mp.spawn(train, args=(parser.parse_args(), port), nprocs=RANKS)


if __name__ == "__main__":
    main()
