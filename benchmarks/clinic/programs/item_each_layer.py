"""Deep MLP that watches the activations of each layer."""
import argparse
import time

import torch
from torch import nn


class Watched(nn.Module):
    def __init__(self, width, depth, keep_tensors):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.keep_tensors = keep_tensors
        self.history = []

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            mean = x.detach().mean()
            if not self.keep_tensors:
                mean = mean.item()  # planted
            self.history.append(mean)
        return x


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
model = Watched(max(8, int(1024 * args.scale)), 24, args.fixed).to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
data = torch.randn(512, model.layers[0].in_features, device=args.device)
for step in range(args.steps):
    if step == 8:
        if args.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
    loss = model(data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del model.history[:-240]
print("loss", loss.item())
print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))
