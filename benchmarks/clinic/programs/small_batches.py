# A wide MLP that is fed four rows at a time: each step reads all weights, and the optimizer updates all of them.
import argparse, time
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

p = argparse.ArgumentParser()
p.add_argument("--fixed", action="store_true")
p.add_argument("--device", default="cpu")
p.add_argument("--scale", type=float, default=1.0)
a = p.parse_args()

torch.manual_seed(0)
usual = 4  # rows that step_ns is about
size = 256 if a.fixed else usual
steps = max(int((30 if a.fixed else 80) * a.scale), 24)
net = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(a.device)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
x = torch.randn(size * steps, 64)
y = torch.randint(10, (len(x),))
loader = DataLoader(TensorDataset(x, y), batch_size=size, collate_fn=lambda rows: tuple(map(torch.stack, zip(*rows))))  # planted
seconds = []
start = time.perf_counter()
for rows, labels in loader:
    loss = F.cross_entropy(net(rows.to(a.device)), labels.to(a.device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
print("loss", loss.item())
# A step of more rows counts as the part of it that the usual rows are.
print("step_ns", int(sum(seconds[8:]) / len(seconds[8:]) * usual / size * 1e9))
