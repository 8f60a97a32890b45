import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
torch._dynamo.config.recompile_limit = 256
torch._dynamo.config.accumulated_recompile_limit = 256

width = max(8, int(256 * args.scale))
encoder = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)).to(args.device)
# each sentence has a length of its own
encoder = torch.compile(encoder, backend="aot_eager", dynamic=args.fixed)  # planted
optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-3)
sentences = [torch.randn(8, 16 + i, width, device=args.device) for i in range(args.steps)]

for i, sentence in enumerate(sentences):
    if i == 8:
        start = time.perf_counter_ns()
    optimizer.zero_grad()
    out = encoder(sentence)  # planted
    out.square().mean().backward()
    optimizer.step()
print("norm", out.detach().norm().item())
print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))
