# language model for the embedded board. everything half to save memory
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--fixed", action="store_true")
ap.add_argument("--device", default="cpu")
ap.add_argument("--scale", type=float, default=1.0)
args = ap.parse_args()
torch.manual_seed(0)

VOCAB, DIM, STEPS = 400, int(64 * args.scale), 50
emb = nn.Embedding(VOCAB, DIM)
body = nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU(), nn.Linear(DIM, VOCAB))
net = nn.Sequential(emb, body).half().to(args.device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
tokens = torch.randint(VOCAB, (8, 33), device=args.device)

for step in range(STEPS):
    if step == 8:
        t0 = time.perf_counter_ns()
    logits = net(tokens[:, :-1]).flatten(0, 1)
    if args.fixed:
        logits = logits.float()
    loss = F.cross_entropy(logits, tokens[:, 1:].flatten())  # planted
    opt.zero_grad()
    loss.backward()
    opt.step()

print("loss", loss.item())
print("step_ns", (time.perf_counter_ns() - t0) // (STEPS - 8))
