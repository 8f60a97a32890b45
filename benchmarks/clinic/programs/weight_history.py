"""A classifier whose weights are averaged over the training (SWA), by hand."""
import argparse, copy, time

import torch
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cpu")
ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()
torch.manual_seed(0)
dev = args.device

hidden = int(1280 * args.scale)
model = nn.Sequential(nn.Linear(64, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, 10)).to(dev)
opt = torch.optim.SGD(model.parameters(), lr=0.02)
data, labels = torch.randn(512, 64, device=dev), torch.randint(10, (512,), device=dev)

history, average = [], None
for it in range(1, 121):
    if it == 9:
        t0 = time.perf_counter_ns()
    loss = nn.functional.cross_entropy(model(data), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 4 == 0:
        if args.fixed:
            if average is None:
                average = copy.deepcopy(model.state_dict())
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 4 / it)
        else:
            history.append(copy.deepcopy(model.state_dict()))  # planted
print("step_ns", (time.perf_counter_ns() - t0) // 112)
if history:
    average = {name: sum(state[name] for state in history) / len(history) for name in history[0]}
model.load_state_dict(average)
print("averaged loss", nn.functional.cross_entropy(model(data), labels).item())
