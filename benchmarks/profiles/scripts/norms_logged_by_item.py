"""Reads five numbers of each parameter in every step to log them."""

# says: in a loop at norms_logged_by_item|Python in log_norms
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

net = nn.Sequential(*[m for _ in range(30) for m in (nn.Linear(64, 64), nn.ReLU())])
opt = torch.optim.Adam(net.parameters(), fused=True)
log = []


def log_norms():
    log.append(
        {
            n: (p.norm().item(), p.grad.norm().item(), p.grad.abs().max().item(), p.grad.mean().item(), p.std().item())
            for n, p in net.named_parameters()
        }
    )


with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=8, repeat=1), with_stack=True
) as p:
    for i in range(10):
        x = torch.randn(64, 64)
        opt.zero_grad()
        net(x).square().mean().backward()
        log_norms()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
