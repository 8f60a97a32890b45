"""DDP on two ranks with equal work, with nothing wrong.

torchrun --nproc-per-node 2 healthy_ddp.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = 45, 48


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="changes nothing: nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
    torch.manual_seed(0)

    data = TensorDataset(torch.randn(BATCH * STEPS * ranks, 3, 24, 24), torch.randint(0, 10, (BATCH * STEPS * ranks,)))
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    channels = int(32 * args.scale)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2 * channels, 10),
    )
    model = DistributedDataParallel(model.to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    for step, (x, y) in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
