"""Compares predictions one by one in Python."""

# says: Python in evaluate
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity

net = Net(96, 2, 500)
data = [torch.randint(0, 500, (32, 24)) for _ in range(12)]


def evaluate():
    hits = 0
    for t in data:
        out = net(t)
        pred = out.argmax(-1)
        for a, b in zip(pred.flatten(), t.flatten()):
            if a.item() == b.item():
                hits += 1
    return hits


evaluate()
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as p:
    evaluate()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
