"""Contrastive-style embeddings; how far features spread is summed up for the report at the end."""

import argparse
import time

import torch
from torch import nn

STEPS = 45


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    return parser.parse_args()


def train(args):
    torch.manual_seed(0)
    rows = int(16384 * args.scale)
    encoder = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128)).to(args.device)
    head = nn.Linear(128, 8).to(args.device)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.01)
    inputs = torch.randn(rows, 32, device=args.device)
    classes = torch.randint(8, (rows,), device=args.device)
    spread = torch.zeros((), device=args.device)
    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        features = encoder(inputs)
        loss = nn.functional.cross_entropy(head(features), classes)
        measured = features.detach() if args.fixed else features
        spread = spread + (measured - measured.mean(0)).square().mean()  # planted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item(), "spread", spread.item() / STEPS)
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


train(parse_args())
