"""Offline evaluation of a two-tower recommender: Recall@k, NDCG@k, MRR over the whole catalogue."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class UserTower(nn.Module):
    """History of items -> user vector (attention pooled)."""

    def __init__(self, n_items, dim, hidden):
        super().__init__()
        self.items = nn.Embedding(n_items, dim, padding_idx=0)
        self.att = nn.Linear(dim, 1)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, hist):
        e = self.items(hist)
        w = self.att(e).squeeze(-1).masked_fill(hist == 0, -1e9).softmax(-1)
        pooled = torch.einsum("bl,bld->bd", w, e)
        return F.normalize(pooled + self.mlp(pooled), dim=-1)


class ItemTower(nn.Module):
    def __init__(self, n_items, n_cats, dim, hidden):
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.cats = nn.Embedding(n_cats, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, item, cat):
        return F.normalize(self.mlp(torch.cat([self.items(item), self.cats(cat)], -1)), dim=-1)


class RankingMetrics:
    def __init__(self, ks=(5, 10, 20)):
        self.ks = ks
        self.sums = {f"{m}@{k}": 0.0 for m in ("recall", "ndcg") for k in ks}
        self.users = 0

    def update(self, scores, target):
        """scores: (users, items), target: (users,) the item that was left out."""
        ranked = torch.argsort(scores, dim=1, descending=True)
        top = ranked[:, : max(self.ks)]
        hits = (top == target.unsqueeze(1)).float()
        discount = 1.0 / torch.log2(torch.arange(top.size(1), dtype=torch.float) + 2.0)
        for k in self.ks:
            self.sums[f"recall@{k}"] += hits[:, :k].sum().item()
            self.sums[f"ndcg@{k}"] += (hits[:, :k] * discount[:k]).sum().item()
        self.users += scores.size(0)

    def compute(self):
        return {name: value / max(1, self.users) for name, value in self.sums.items()}


def make_users(n_users, n_items, max_hist, seed=0):
    g = torch.Generator().manual_seed(seed)
    hist = torch.randint(1, n_items, (n_users, max_hist), generator=g)
    lengths = torch.randint(5, max_hist + 1, (n_users, 1), generator=g)
    hist[torch.arange(max_hist).unsqueeze(0) >= lengths] = 0
    target = torch.randint(1, n_items, (n_users,), generator=g)
    return hist, target


@torch.inference_mode()
def evaluate(user_tower, item_tower, loader, n_items, cats, steps, log_every=50):
    user_tower.eval()
    item_tower.eval()
    catalogue = item_tower(torch.arange(n_items), cats)
    metrics = RankingMetrics()
    seen = 0
    while seen < steps:
        for hist, target in loader:
            users = user_tower(hist)
            scores = users @ catalogue.t()
            scores.scatter_(1, hist, -math.inf)  # what the user has had is not recommended again
            metrics.update(scores, target)
            seen += 1
            if seen % log_every == 0:
                print(f"batch {seen}: " + " ".join(f"{k}={v:.4f}" for k, v in metrics.compute().items()))
            if seen >= steps:
                break
    return metrics.compute()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=250)
    p.add_argument("--items", type=int, default=20000)
    p.add_argument("--dim", type=int, default=128)
    p.add_argument("--batch-size", type=int, default=64)
    args = p.parse_args()
    torch.manual_seed(1)
    user_tower = UserTower(args.items, args.dim, 512)
    item_tower = ItemTower(args.items, 200, args.dim, 512)
    cats = torch.randint(0, 200, (args.items,))
    hist, target = make_users(64 * 100, args.items, 50)
    ds = torch.utils.data.TensorDataset(hist, target)
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(ds), args.batch_size, drop_last=True)
    loader = torch.utils.data.DataLoader(ds, sampler=sampler, batch_size=None)
    t0 = time.time()
    result = evaluate(user_tower, item_tower, loader, args.items, cats, args.steps)
    print(result, f"{time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
