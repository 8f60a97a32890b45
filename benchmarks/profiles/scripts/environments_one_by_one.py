"""Steps 32 environments one after the other in Python."""

# says: environments are stepped one by one
import sys

from models import Block, Net, nn, time, torch
import math, random
from torch.profiler import profile, ProfilerActivity


class Env:
    def __init__(s):
        s.x = 0.0
        s.v = 0.0

    def step(s, a):
        for _ in range(40):
            s.v += 0.001 * (a - 1) - 0.0025 * math.cos(3 * s.x)
            s.x += s.v
        return [s.x, s.v], -1.0


envs = [Env() for _ in range(32)]
net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 3))
opt = torch.optim.Adam(net.parameters(), fused=True)
obs = torch.zeros(32, 2)


def rollout():
    global obs
    logs = []
    rs = []
    for t in range(16):
        d = torch.distributions.Categorical(logits=net(obs))
        a = d.sample()
        logs.append(d.log_prob(a))
        out = [e.step(int(x)) for e, x in zip(envs, a)]
        obs = torch.tensor([o for o, _ in out])
        rs.append(torch.tensor([r for _, r in out]))
    return torch.stack(logs), torch.stack(rs)


def update():
    l, r = rollout()
    loss = -(l * r).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


update()
with profile(activities=[ProfilerActivity.CPU], with_stack=True) as p:
    for _ in range(5):
        update()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
