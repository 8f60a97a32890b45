"""16 threads on two cores: no recording of torch.profiler shows that."""

# says: nothing was found
import sys

from models import Block, Net, nn, time, torch

torch.set_num_threads(16)
from torch.profiler import profile, ProfilerActivity, schedule

net = Net(128, 2, 2000)
opt = torch.optim.Adam(net.parameters(), fused=True)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=5, repeat=1),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(7):
        t = torch.randint(0, 2000, (8, 64))
        l = nn.functional.cross_entropy(net(t).flatten(0, 1), t.flatten())
        opt.zero_grad()
        l.backward()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
