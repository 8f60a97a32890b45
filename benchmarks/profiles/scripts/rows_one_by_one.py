"""Encodes the rows of a batch one by one."""

# says: with one row each
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

enc = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64))
head = nn.Linear(64, 2)
ps = [*enc.parameters(), *head.parameters()]
opt = torch.optim.SGD(ps, lr=0.1)


def encode(xs):
    return torch.stack([enc(x) for x in xs])


with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(8):
        xs = torch.randn(64, 128)
        y = torch.randint(0, 2, (64,))
        l = nn.functional.cross_entropy(head(encode(xs)), y)
        opt.zero_grad()
        l.backward()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
