"""Language model head over a vocabulary of 50,257 words (as GPT-2's) in bfloat16."""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


class Head(nn.Module):
    def __init__(self, width, words):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, words, bias=False)  # planted

    def forward(self, x):
        return self.out(self.norm(x))  # planted


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
cuda = args.device == "cuda"
words = (50304 if args.fixed else 50257) if cuda else (128 if args.fixed else 127)
width, tokens = max(8, int((768 if cuda else 64) * args.scale)), 8192 if cuda else 32
head = Head(width, words).to(args.device)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01, fused=True)
x = torch.randn(tokens, width, device=args.device)
targets = torch.randint(words, (tokens,), device=args.device)
for step in range(45):
    if step == 8:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
    with torch.autocast(args.device, torch.bfloat16):
        logits = head(x)
        loss = F.cross_entropy(logits, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
print("step_ns", (time.perf_counter_ns() - start) // 37)
