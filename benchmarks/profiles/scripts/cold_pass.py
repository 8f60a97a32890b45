"""One cold pass, with the model made in it: most of it fills weights, which happens once."""

# says: filling a new model's weights
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity

with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
    net = Net(256, 6, 30000)
    t = torch.randint(0, 30000, (1, 64))
    net(t)
p.export_chrome_trace(sys.argv[1] + "/trace.json")
