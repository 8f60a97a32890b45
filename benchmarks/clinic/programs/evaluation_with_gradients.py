"""A trainer class that validates every few steps, and forgot no_grad."""

import argparse
import contextlib
import time

import torch
from torch import nn

STEPS, VALIDATE_EVERY = 48, 2


class ConvNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 1)
        self.scales = nn.ParameterList(torch.rand(channels, 1, 1) for _ in range(12))
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem(x)
        for scale in self.scales:
            x = torch.nn.functional.leaky_relu(x * scale + 0.01, 0.1)
        return self.head(x.mean((2, 3)))


class Trainer:
    def __init__(self, model, optimizer, device, validate_without_gradients):
        self.model, self.optimizer, self.device = model, optimizer, device
        self.criterion = nn.CrossEntropyLoss()
        self.validate_without_gradients = validate_without_gradients

    def fit(self, train_batches, valid_batches):
        for step, (x, y) in enumerate(train_batches):
            if step == 8:
                start_ns = time.perf_counter_ns()
            self.train_step(x, y)
            if step % VALIDATE_EVERY == 0:
                accuracy = self.validate(valid_batches)
        print("accuracy", accuracy)
        print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))

    def train_step(self, x, y):
        self.model.train()
        self.optimizer.zero_grad()
        self.criterion(self.model(x), y).backward()
        self.optimizer.step()

    def validate(self, batches):
        self.model.eval()
        right = 0
        with torch.no_grad() if self.validate_without_gradients else contextlib.nullcontext():
            for x, y in batches:
                right += (self.model(x).argmax(1) == y).sum().item()  # planted
        return right / sum(len(y) for _, y in batches)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    def make_batches(count, size):
        side = int(32 * args.scale)
        x = torch.randn(count, size, 3, side, side, device=args.device)
        return list(zip(x, torch.randint(0, 10, (count, size), device=args.device)))

    model = ConvNet(16).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    Trainer(model, optimizer, args.device, args.fixed).fit(make_batches(STEPS, 8), make_batches(2, 32))


if __name__ == "__main__":
    main()
