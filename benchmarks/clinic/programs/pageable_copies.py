import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
width = max(64, int((1 << 18 if args.device == "cuda" else 1024) * args.scale))
pin = args.fixed and args.device == "cuda"
dataset = TensorDataset(torch.randn(128, width))
loader = DataLoader(dataset, batch_size=32, pin_memory=pin)  # planted
model = nn.Linear(width, 256).to(args.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
step, start = 0, 0
for epoch in range(15):
    for (batch,) in loader:
        if step == 8:
            start = time.perf_counter_ns()
        x = batch.to(args.device, non_blocking=pin)  # planted
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
print(loss.item())
print("step_ns", (time.perf_counter_ns() - start) // (step - 8))
