"""Keeps the books of a beam search in Python, with tiny ops."""

# says: Python in search
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, record_function

cell = nn.GRUCell(64, 64).eval()
emb = nn.Embedding(1000, 64)
head = nn.Linear(64, 1000)


@torch.no_grad()
def search(h, width=6, steps=25):
    beams = [([0], 0.0, h)]
    for _ in range(steps):
        cand = []
        for toks, score, hh in beams:
            hh = cell(emb(torch.tensor([toks[-1]])), hh)
            lp = head(hh).log_softmax(-1)[0]
            top = lp.topk(width)
            for v, i in zip(top.values, top.indices):
                cand.append((toks + [i.item()], score + v.item(), hh))
        beams = sorted(cand, key=lambda c: -c[1])[:width]
    return beams[0][0]


search(torch.zeros(1, 64))
with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as p:
    for _ in range(4):
        with record_function("request"):
            search(torch.randn(1, 64))
p.export_chrome_trace(sys.argv[1] + "/trace.json")
