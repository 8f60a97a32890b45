"""Copies the model by copy.deepcopy in each step for a moving average."""

# says: copy.deepcopy
import sys

from models import Block, Net, nn, time, torch
import copy
from torch.profiler import profile, ProfilerActivity, schedule

net = Net(128, 3, 4000)
ema = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), fused=True)


def update_ema():
    new = copy.deepcopy(net)
    with torch.no_grad():
        for a, b, c in zip(ema.parameters(), net.parameters(), new.parameters()):
            a.copy_(0.99 * a + 0.01 * c)


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1), with_stack=True
) as p:
    for i in range(8):
        t = torch.randint(0, 4000, (2, 32))
        l = nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten())
        opt.zero_grad()
        l.backward()
        opt.step()
        update_ema()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
