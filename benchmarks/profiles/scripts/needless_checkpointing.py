"""Checkpoints every block of a tiny model."""

# says: activation checkpointing computes
import sys

from models import Block, Net, nn, time, torch
from torch.utils.checkpoint import checkpoint
from torch.profiler import profile, ProfilerActivity, schedule

bl = nn.ModuleList([Block(128) for _ in range(6)])
opt = torch.optim.AdamW(bl.parameters(), fused=True)
with profile(
    activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=6, repeat=1), with_stack=True
) as p:
    for i in range(8):
        x = torch.randn(8, 64, 128)
        for b in bl:
            x = checkpoint(b, x, use_reentrant=False)
        x.square().mean().backward()
        opt.step()
        opt.zero_grad()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
