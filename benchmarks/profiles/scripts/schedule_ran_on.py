"""The schedule began its next cycle before the export: the recording holds no op."""

# says: no op of PyTorch is in the trace
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

net = Net(128, 2, 2000)
opt = torch.optim.AdamW(net.parameters(), foreach=False)
tot = 0
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=2, warmup=2, active=8),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(16):
        t = torch.randint(0, 2000, (4, 32))
        l = nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten()) / 4
        l.backward()
        tot += l.item()
        if i % 4 == 3:
            opt.step()
            opt.zero_grad()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
