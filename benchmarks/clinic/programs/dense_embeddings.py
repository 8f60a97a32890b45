# matrix factorisation with a small head: users x items, implicit feedback
import argparse
import time

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, users, items, dim, sparse):
        super().__init__()
        self.users = nn.Embedding(users, dim, sparse=sparse)  # planted
        self.items = nn.Embedding(items, dim, sparse=sparse)
        self.head = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, user, item):
        return self.head(torch.cat([self.users(user), self.items(item)], dim=-1)).squeeze(-1)  # planted


ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cpu")
ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()
torch.manual_seed(0)
cuda = args.device == "cuda"
n_users, n_items, dim, batch = int((4_000_000 if cuda else 150_000) * args.scale), int(80_000 * args.scale), 16, 512
net = Recommender(n_users, n_items, dim, args.fixed).to(args.device)
if args.fixed:
    tables = [net.users.weight, net.items.weight]
    opts = [torch.optim.SparseAdam(tables, lr=1e-3), torch.optim.Adam(net.head.parameters(), lr=1e-3, fused=True)]
else:
    opts = [torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)]
loss_fn = nn.BCEWithLogitsLoss()
for it in range(60):
    if it == 8:
        if cuda:
            torch.cuda.synchronize()
        t0 = time.perf_counter_ns()
    user = torch.randint(n_users, (batch,), device=args.device)
    item = torch.randint(n_items, (batch,), device=args.device)
    label = ((user + item) % 3 == 0).float()
    loss = loss_fn(net(user, item), label)
    for opt in opts:
        opt.zero_grad()
    loss.backward()
    for opt in opts:
        opt.step()
print("loss", loss.item())
print("step_ns", (time.perf_counter_ns() - t0) // 52)
