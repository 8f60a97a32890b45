"""A trainer class; gradients of the last step are cleared when the next ones are about to be made."""

import argparse
import time

import torch
from torch import nn


class Trainer:
    def __init__(self, args):
        torch.manual_seed(0)
        width = int(1536 * args.scale)
        layers = [each for _ in range(3) for each in (nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width))]
        self.model = nn.Sequential(*layers).to(args.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batch = torch.randn(768, width, device=args.device)
        self.fixed = args.fixed

    def training_step(self):
        loss = self.model(self.batch).square().mean()
        if not self.fixed:
            self.optimizer.zero_grad()  # planted
        loss.backward()  # planted
        self.optimizer.step()
        if self.fixed:
            self.optimizer.zero_grad()
        return loss.detach()

    def fit(self, steps):
        for step in range(steps):
            if step == 8:
                start_ns = time.perf_counter_ns()
            loss = self.training_step()
        print("loss", loss.item())
        print("step_ns", (time.perf_counter_ns() - start_ns) // (steps - 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    Trainer(parser.parse_args()).fit(24)


main()
