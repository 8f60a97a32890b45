"""Node classification on a citation graph with hand-written message passing (no PyG needed)."""
import argparse
import time

import torch
from torch import nn
import torch.nn.functional as F


def random_citation_graph(num_nodes, avg_degree, num_classes, feat_dim, seed=7):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(num_classes, (num_nodes,), generator=g)
    centers = torch.randn(num_classes, feat_dim, generator=g)
    x = centers[y] * 0.3 + torch.randn(num_nodes, feat_dim, generator=g)
    num_edges = num_nodes * avg_degree
    src = torch.randint(num_nodes, (num_edges,), generator=g)
    dst = torch.randint(num_nodes, (num_edges,), generator=g)
    dst, order = dst.sort()
    src = src[order]
    edge_attr = torch.rand(num_edges, 1, generator=g)
    train_mask = torch.rand(num_nodes, generator=g) < 0.6
    return x, y, src, dst, edge_attr, train_mask


class MessageLayer(nn.Module):
    """h_i' = norm( W_self h_i + mean_j  gate(e_ij) * (W_msg h_j) )"""

    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.lin_self = nn.Linear(in_dim, out_dim)
        self.lin_msg = nn.Linear(in_dim, out_dim)
        self.gate = nn.Linear(1, 1)
        self.norm = nn.LayerNorm(out_dim)

    def message(self, h_src, edge_attr):
        return torch.sigmoid(self.gate(edge_attr)) * self.lin_msg(h_src)

    def forward(self, h, src, dst, edge_attr, inv_deg):
        msg = self.message(h[src], edge_attr)
        agg = torch.zeros(h.size(0), msg.size(1), dtype=h.dtype)
        agg = agg.index_add(0, dst, msg)
        return self.norm(self.lin_self(h) + agg * inv_deg)


class GraphNet(nn.Module):
    def __init__(self, feat_dim, hidden, num_classes, layers=2, dropout=0.2):
        super().__init__()
        dims = [feat_dim] + [hidden] * layers
        self.layers = nn.ModuleList(MessageLayer(a, b) for a, b in zip(dims[:-1], dims[1:]))
        self.out = nn.Linear(hidden, num_classes)
        self.dropout = dropout

    def forward(self, x, src, dst, edge_attr, inv_deg):
        h = x
        for layer in self.layers:
            h = F.relu(layer(h, src, dst, edge_attr, inv_deg))
            h = F.dropout(h, self.dropout, self.training)
        return self.out(h)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--nodes", type=int, default=2000)
    ap.add_argument("--degree", type=int, default=12)
    ap.add_argument("--hidden", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(0)

    x, y, src, dst, edge_attr, train_mask = random_citation_graph(args.nodes, args.degree, 7, 256)
    deg = torch.zeros(args.nodes).index_add_(0, dst, torch.ones(dst.numel()))
    inv_deg = (1.0 / deg.clamp(min=1)).unsqueeze(1)

    model = GraphNet(x.size(1), args.hidden, 7)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=1e-4, fused=True)

    start = time.time()
    for epoch in range(1, args.steps + 1):
        model.train()
        opt.zero_grad(set_to_none=True)
        logits = model(x, src, dst, edge_attr, inv_deg)
        loss = F.cross_entropy(logits[train_mask], y[train_mask])
        loss.backward()
        opt.step()
        if epoch % 50 == 0:
            model.eval()
            with torch.no_grad():
                pred = model(x, src, dst, edge_attr, inv_deg).argmax(1)
                acc = (pred[~train_mask] == y[~train_mask]).float().mean()
            print(f"epoch {epoch:4d} loss {loss.item():.4f} val acc {acc.item():.3f}")
    print(f"finished in {time.time() - start:.1f}s")


if __name__ == "__main__":
    main()
