"""Parses text for each sample in the loop, and Adam goes over a table unfused: either is first."""

# says: goes over the parameters|DataLoader has no workers
import sys

from models import Block, Net, nn, time, torch
import json
from torch.profiler import profile, ProfilerActivity
from torch.utils.data import Dataset, DataLoader

rows = [json.dumps({"t": [i % 97 for i in range(j, j + 64)], "y": j % 2}) for j in range(512)]


class D(Dataset):
    def __len__(s):
        return len(rows)

    def __getitem__(s, i):
        r = json.loads(rows[i])
        return torch.tensor([hash(str(v)) % 5000 for v in r["t"]]), r["y"]


net = nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters())


def train():
    for x, y in DataLoader(D(), batch_size=32):
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


with profile(activities=[ProfilerActivity.CPU], with_stack=True) as p:
    train()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
