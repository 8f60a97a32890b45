"""A trainer class that saves a checkpoint every second step, since the machine was once lost."""

import argparse
import os
import tempfile
import time

import torch
from torch import nn

STEPS = 48


class Trainer:
    def __init__(self, model, folder, save_every):
        self.model, self.folder, self.save_every = model, folder, save_every
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def fit(self, batches):
        for step, (x, y) in enumerate(batches):
            if step == 8:
                start_ns = time.perf_counter_ns()
            loss = self.training_step(x, y)
            if step % self.save_every == self.save_every - 1:
                self.save_checkpoint(step)
        print("loss", loss.item())
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))

    def training_step(self, x, y):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def save_checkpoint(self, step):
        state = {"step": step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, os.path.join(self.folder, "last.pt"))  # planted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    width = int(384 * args.scale)
    model = nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 10),
    ).to(args.device)
    x = torch.randn(STEPS, 256, width, device=args.device)
    y = torch.randint(0, 10, (STEPS, 256), device=args.device)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(model, folder, save_every=24 if args.fixed else 2).fit(list(zip(x, y)))


if __name__ == "__main__":
    main()
