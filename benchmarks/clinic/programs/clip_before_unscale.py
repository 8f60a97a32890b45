"""A small classifier trained with autocast and a gradient scaler; the clip was added where the gradients are made."""

import argparse
import time

import torch
from torch import nn
from torch.amp import GradScaler, autocast

BATCH, STEPS, MAX_NORM = 128, 60, 1.0


class Trainer:
    def __init__(self, device, width, unscale):
        self.device, self.unscale = device, unscale
        self.net = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10))
        self.net.to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9, fused=True)
        self.scaler = GradScaler(device)

    def step(self, x, y):
        self.optimizer.zero_grad()
        with autocast(self.device, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(self.net(x), y)
        self.scaler.scale(loss).backward()
        if self.unscale:
            self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.net.parameters(), MAX_NORM)  # planted
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    trainer = Trainer(args.device, int(512 * args.scale), unscale=args.fixed)
    x = torch.randn(BATCH, 64, device=args.device)
    y = x[:, :10].argmax(1)
    for number in range(STEPS):
        if number == 8:
            start = time.perf_counter_ns()
        loss = trainer.step(x, y)
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start) // (STEPS - 8))


if __name__ == "__main__":
    main()
