"""Rank 1 takes 30 ms longer to make a batch: the other waits."""

# says: rank 1 enters the step
import sys

import os, time, torch
from torch import nn
import torch.distributed as dist
from torch.profiler import profile, ProfilerActivity, schedule

dist.init_process_group("gloo")
r = dist.get_rank()
torch.set_num_threads(1)
net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def make_batch():
    x = torch.randn(64, 256)
    if r == 1:
        t = time.perf_counter()
        n = 0
        while time.perf_counter() - t < 0.03:
            n += 1
    return x


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1), with_stack=True
) as p:
    for i in range(8):
        x = make_batch()
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        p.step()
p.export_chrome_trace(f"{sys.argv[1]}/rank{r}.json")
dist.destroy_process_group()
