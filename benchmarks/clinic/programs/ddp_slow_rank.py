"""DDP started by the script itself; rank 0 summarises all activations for the dashboard in each step."""

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, RANKS = 45, 2


def summarize_activations(values):
    array = values.detach().cpu().numpy()
    histogram, _ = np.histogram(array, bins=64)  # planted
    return {"histogram": histogram.tolist(), "quantiles": np.quantile(array, [0.01, 0.5, 0.99]).tolist()}  # planted


def train(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo", rank=rank, world_size=RANKS)
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = int(256 * args.scale)
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if args.device == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    dashboard = []

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        x = torch.randn(512, width, device=device)
        output = model(x)
        loss = nn.functional.mse_loss(output, x)
        optimizer.zero_grad()
        if rank == 0 and (step % 15 == 0 or not args.fixed):
            dashboard.append(summarize_activations(output))  # planted
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8), flush=True)
    dist.destroy_process_group()


def find_free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    mp.spawn(train, args=(parser.parse_args(), find_free_port()), nprocs=RANKS)


if __name__ == "__main__":
    main()
