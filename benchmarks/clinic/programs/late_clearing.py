"""Two optimizers over one wide network; both clear their gradients in the line before backward."""
import argparse
import time

import torch

pa = argparse.ArgumentParser(); pa.add_argument("--device", default="cpu")
pa.add_argument("--scale", type=float, default=1.0); pa.add_argument("--fixed", action="store_true")
pa = pa.parse_args()
torch.manual_seed(0)
W = int(1792 * pa.scale)
lower = torch.nn.Sequential(torch.nn.Linear(W, W), torch.nn.ELU(), torch.nn.Linear(W, W), torch.nn.ELU()).to(pa.device)
upper = torch.nn.Sequential(torch.nn.Linear(W, W), torch.nn.ELU(), torch.nn.Linear(W, 8)).to(pa.device)
optimizers = [torch.optim.SGD(lower.parameters(), lr=1e-3), torch.optim.SGD(upper.parameters(), lr=1e-2)]
data = torch.randn(1024, W, device=pa.device)
goal = torch.randint(8, (1024,), device=pa.device)
for it in range(22):
    if it == 8: t0 = time.perf_counter_ns()
    loss = torch.nn.functional.cross_entropy(upper(lower(data)), goal)
    if not pa.fixed:
        for each in optimizers: each.zero_grad()  # planted
    loss.backward()  # planted
    for each in optimizers: each.step()
    if pa.fixed:
        for each in optimizers: each.zero_grad()
print("step_ns", (time.perf_counter_ns() - t0) // 14)
print("loss", loss.item())
