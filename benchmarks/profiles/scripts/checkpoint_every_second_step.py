"""Saves model and optimizer in every second step."""

# says: Saving checkpoints
import sys

from models import Block, Net, nn, time, torch
import os
from torch.profiler import profile, ProfilerActivity, schedule

net = Net(128, 4, 20000)
opt = torch.optim.Adam(net.parameters(), fused=True)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6), with_stack=True) as p:
    for i in range(8):
        t = torch.randint(0, 2000, (4, 32))
        l = nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten())
        l.backward()
        opt.step()
        opt.zero_grad()
        if i % 2:
            torch.save({"m": net.state_dict(), "o": opt.state_dict()}, sys.argv[1] + "/x.pt")
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
