"""Contrastive learning with a queue of keys from earlier batches, in the manner of MoCo."""

import argparse
import time
from collections import deque

import torch
import torch.nn.functional as F
from torch import nn


class KeyQueue:
    """Keys of earlier batches, the negatives of the next ones."""

    def __init__(self, batches, bounded):
        self.batches = batches
        self.keys = deque(maxlen=batches if bounded else None)  # planted

    def negatives(self):
        return torch.cat([keys[:64] for keys in list(self.keys)[-self.batches :]])

    def push(self, keys):
        self.keys.append(keys)  # planted


class Learner(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(48, width), nn.ReLU(), nn.Linear(width, width))
        self.key = nn.Sequential(nn.Linear(48, width), nn.ReLU(), nn.Linear(width, width))
        self.key.requires_grad_(False)

    @torch.no_grad()
    def keys_of(self, view):
        for mine, theirs in zip(self.key.parameters(), self.query.parameters()):
            mine.lerp_(theirs, 0.01)
        return F.normalize(self.key(view), dim=1)  # planted

    def loss(self, view, keys, negatives):
        query = F.normalize(self.query(view), dim=1)
        positive = (query * keys).sum(1, keepdim=True)
        logits = torch.cat([positive, query @ negatives.T], dim=1) / 0.2
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    rows, steps = int(6144 * args.scale), 70
    learner = Learner(256).to(args.device)
    optimizer = torch.optim.SGD(learner.query.parameters(), lr=0.05, momentum=0.9)
    queue = KeyQueue(6, args.fixed)
    samples = torch.randn(rows, 48, device=args.device)
    queue.push(learner.keys_of(samples))
    for step in range(steps):
        if step == 8:
            start_ns = time.perf_counter_ns()
        view = samples + 0.1 * torch.randn_like(samples)
        keys = learner.keys_of(samples + 0.1 * torch.randn_like(samples))
        loss = learner.loss(view, keys, queue.negatives())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.push(keys)
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (steps - 8))


main()
