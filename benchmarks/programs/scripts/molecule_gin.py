"""Molecule properties with a graph isomorphism network on batched graphs.

    python molecule_gin.py
"""
import time
from statistics import median

import torch
from torch import nn


class GINLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x, source, target):
        gathered = torch.zeros_like(x).index_add_(0, target, x[source])
        return torch.relu(self.mlp((1 + self.eps) * x + gathered))


class GIN(nn.Module):
    def __init__(self, atoms=32, width=128, layers=4):
        super().__init__()
        self.embed = nn.Embedding(atoms, width)
        self.layers = nn.ModuleList(GINLayer(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, atoms, source, target, graph, graphs):
        x = self.embed(atoms)
        for layer in self.layers:
            x = layer(x, source, target)
        pooled = torch.zeros(graphs, x.shape[1]).index_add_(0, graph, x)
        return self.head(pooled).squeeze(-1)


def batch_graphs(graphs=128, nodes=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    atoms = torch.randint(0, 32, (graphs * nodes,), generator=g)
    graph = torch.arange(graphs).repeat_interleave(nodes)
    source = torch.randint(0, nodes, (graphs * nodes * 2,), generator=g)
    target = torch.randint(0, nodes, (graphs * nodes * 2,), generator=g)
    shift = torch.arange(graphs).repeat_interleave(nodes * 2) * nodes
    return atoms, source + shift, target + shift, graph, torch.randn(graphs, generator=g)


torch.manual_seed(0)
batches = [batch_graphs(seed=seed) for seed in range(12)]
model = GIN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
times, start = [], time.perf_counter()
for epoch in range(10):
    total = torch.zeros(())
    for atoms, source, target, graph, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.l1_loss(model(atoms, source, target, graph, len(y)), y)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        now = time.perf_counter()
        times.append(now - start)
        start = now
    print(f"epoch {epoch}: {total.item() / len(batches):.4f}")
print(f"median step {median(times[10:]) * 1e3:.2f} ms")
