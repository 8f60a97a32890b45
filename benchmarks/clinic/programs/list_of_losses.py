"""Fit a regressor; a validation loss is kept after each step and the best one is printed."""
import argparse
import time

import torch
import torch.nn as nn

p = argparse.ArgumentParser()
p.add_argument("--device", default="cpu")
p.add_argument("--scale", type=float, default=1.0)
p.add_argument("--fixed", action="store_true")
args = p.parse_args()
torch.manual_seed(0)

width = int(256 * args.scale)
net = nn.Sequential(nn.Linear(24, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)).to(args.device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
mse = nn.MSELoss()
X, y = torch.randn(8192, 24, device=args.device), torch.randn(8192, 1, device=args.device)
X_valid, y_valid = torch.randn(4096, 24, device=args.device), torch.randn(4096, 1, device=args.device)
valid_losses = []
for i in range(45):
    if i == 8:
        t0 = time.perf_counter_ns()
    opt.zero_grad()
    mse(net(X), y).backward()
    opt.step()
    valid_loss = mse(net(X_valid), y_valid)  # planted
    valid_losses.append(valid_loss.item() if args.fixed else valid_loss)  # planted
print("best", float(min(valid_losses)))
print("step_ns", (time.perf_counter_ns() - t0) // 37)
