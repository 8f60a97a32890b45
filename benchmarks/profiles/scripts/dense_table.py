"""Adam goes over 200,000 rows of a table, of which 512 are used."""

# says: dense gradients
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

emb = nn.Embedding(200000, 32)
mlp = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam([*emb.parameters(), *mlp.parameters()])
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(8):
        u = torch.randint(0, 200000, (256, 2))
        y = torch.rand(256)
        o = mlp(emb(u).flatten(1)).squeeze(1)
        l = nn.functional.binary_cross_entropy_with_logits(o, y)
        opt.zero_grad()
        l.backward()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
