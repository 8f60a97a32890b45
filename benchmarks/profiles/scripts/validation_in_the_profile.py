"""Validation, with gradients, takes most of the recording."""

# says: [0-9,]+ ops instead of
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity

net = Net(96, 2, 500)
opt = torch.optim.Adam(net.parameters(), fused=True)
tr = [torch.randint(0, 500, (16, 24)) for _ in range(6)]
va = [torch.randint(0, 500, (16, 24)) for _ in range(40)]


def fit(epochs):
    for _ in range(epochs):
        net.train()
        for t in tr:
            loss = nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten())
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        tot = 0.0
        for t in va:
            tot += nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten()).item()


fit(1)
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as p:
    fit(2)
p.export_chrome_trace(sys.argv[1] + "/trace.json")
