"""Sorts all scores so far in Python in each step."""

# says: Python in auc
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.Adam(net.parameters(), fused=True)
S = []
Y = []


def auc(s, y):
    pairs = sorted(zip(s, y))
    pos = sum(y)
    neg = len(y) - pos
    rank = 0
    for i, (a, b) in enumerate(pairs):
        if b:
            rank += i + 1
    return (rank - pos * (pos + 1) / 2) / max(pos * neg, 1)


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=20, warmup=2, active=8, repeat=1), with_stack=True
) as p:
    for i in range(30):
        x = torch.randn(256, 64)
        y = (x[:, 0] > 0).float()
        o = net(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(o, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        S += o.tolist()
        Y += y.tolist()
        auc(S, Y)
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
