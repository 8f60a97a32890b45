"""Healthy: a critic with a gradient penalty, mostly products."""

# says: nothing was found
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

D = nn.Sequential(nn.Linear(256, 512), nn.LeakyReLU(0.2), nn.Linear(512, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
opt = torch.optim.Adam(D.parameters(), fused=True)
real = torch.randn(512, 256)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(8):
        fake = torch.randn(512, 256)
        e = torch.rand(512, 1)
        x = (e * real + (1 - e) * fake).requires_grad_()
        (g,) = torch.autograd.grad(D(x).sum(), x, create_graph=True)
        loss = D(fake).mean() - D(real).mean() + 10 * ((g.norm(2, 1) - 1) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
