"""Message passing on a random graph with deterministic algorithms, a leftover of the reproducibility study."""

import argparse
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn

STEPS = 45


class GraphLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, nodes, source, target):
        messages = torch.relu(self.message(nodes))[source]
        total = torch.zeros_like(nodes).index_add(0, target, messages)
        return torch.relu(self.update(torch.cat([nodes, total], 1)))


class GraphNet(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 7)

    def forward(self, nodes, source, target):
        for layer in self.layers:
            nodes = layer(nodes, source, target)
        return self.head(nodes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(not args.fixed)  # planted

    count, edges, width = int(2000 * args.scale), int(12000 * args.scale), 64
    nodes = torch.randn(count, width, device=args.device)
    source = torch.randint(0, count, (edges,), device=args.device)
    target = torch.randint(0, count, (edges,), device=args.device)
    labels = torch.randint(0, 7, (count,), device=args.device)
    model = GraphNet(width, 3).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(nodes, source, target), labels)
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
