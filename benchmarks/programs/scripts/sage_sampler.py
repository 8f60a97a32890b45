#!/usr/bin/env python
"""GraphSAGE with neighbour sampling on a random power-law graph (5,000 nodes)."""
import random
import time
from collections import defaultdict
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

NODES, FEATURES, CLASSES, FANOUT = 5_000, 128, 16, (10, 10)


def make_graph(seed=7):
    rng = random.Random(seed)
    adjacency = defaultdict(list)
    ends = list(range(50))
    for node in range(50, NODES):
        for _ in range(8):
            other = rng.choice(ends)
            adjacency[node].append(other)
            adjacency[other].append(node)
            ends += [node, other]
    return adjacency


class NeighborSampler:
    """Returns the nodes of each hop, and for each node of a hop where its sampled neighbours stand in the next."""

    def __init__(self, adjacency, fanout):
        self.adjacency, self.fanout = adjacency, fanout

    def __call__(self, seeds):
        layers, frontier = [], list(seeds)
        for k in self.fanout:
            index, position = {node: i for i, node in enumerate(frontier)}, []
            nodes = list(frontier)
            for node in frontier:
                neighbours = self.adjacency[node] or [node]
                picked = random.sample(neighbours, k) if len(neighbours) >= k else random.choices(neighbours, k=k)
                for other in picked:
                    if other not in index:
                        index[other] = len(nodes)
                        nodes.append(other)
                    position.append(index[other])
            layers.append(torch.tensor(position).view(-1, k))
            frontier = nodes
        return torch.tensor(seeds), torch.tensor(frontier), layers


class SAGE(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.lin1 = nn.Linear(2 * FEATURES, hidden)
        self.lin2 = nn.Linear(2 * hidden, CLASSES)

    def aggregate(self, h, neighbours):
        return torch.cat([h[: len(neighbours)], h[neighbours].mean(1)], dim=1)

    def forward(self, x, layers):
        h = F.relu(self.lin1(self.aggregate(x, layers[1])))
        return self.lin2(self.aggregate(h, layers[0]))


def main():
    random.seed(0)
    torch.manual_seed(0)
    adjacency = make_graph()
    x, y = torch.randn(NODES, FEATURES), torch.randint(0, CLASSES, (NODES,))
    train_loader = DataLoader(range(NODES), batch_size=64, shuffle=True, collate_fn=NeighborSampler(adjacency, FANOUT))
    model = SAGE()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    times, start = [], time.perf_counter()
    for batch, (seeds, nodes, layers) in enumerate(train_loader):
        optimizer.zero_grad()
        out = model(x[nodes], layers)
        loss = F.cross_entropy(out, y[seeds])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        start = time.perf_counter()
        if batch % 20 == 0:
            print(f"batch {batch:03d}, loss {float(loss):.4f}, {len(nodes)} nodes")
    print(f"median step {median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
