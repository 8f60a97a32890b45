# torchrun --nproc-per-node 2 ddp_gloo.py
import argparse
import time
from statistics import median

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)

    micro = args.steps * args.accumulate
    data = TensorDataset(torch.randn(micro * 8 * dist.get_world_size(), 512), torch.randint(0, 100, (micro * 8 * dist.get_world_size(),)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 100))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    criterion = nn.CrossEntropyLoss()

    times, t = [], time.perf_counter()
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % args.accumulate == 0
        loss = criterion(model(x), y) / args.accumulate
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - t)
            t = time.perf_counter()
    if rank == 0:
        print(f"loss {loss.item() * args.accumulate:.3f}")
        print(f"median step {median(times[8:]) * 1e3:.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
