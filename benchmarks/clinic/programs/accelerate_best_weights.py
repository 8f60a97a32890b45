"""Keeps the best weights with accelerate: a copy of all of them when the loss gets better, as it does in most steps."""

import argparse
import copy
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH = 48, 64


class BestWeights:
    """The weights of the lowest loss so far, looked at every few steps."""

    def __init__(self, accelerator, every):
        self.accelerator, self.every, self.best, self.weights = accelerator, every, float("inf"), None

    def update(self, step, loss, model):
        if step % self.every == 0 and loss < self.best:
            self.best = loss
            self.weights = copy.deepcopy(self.accelerator.unwrap_model(model).state_dict())  # planted


class TextClassifier(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width).requires_grad_(False)  # pretrained
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 4))

    def forward(self, tokens):
        return self.body(self.embedding(tokens)).mean(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    accelerator = Accelerator(cpu=args.device == "cpu")
    words = int(20000 * args.scale)
    tokens = torch.randint(0, words, (BATCH, 24)).repeat(STEPS, 1)  # one batch again and again: the loss goes down
    model = TextClassifier(words, 128)
    optimizer = torch.optim.SGD(model.body.parameters(), lr=0.05, fused=True)
    loader = DataLoader(TensorDataset(tokens, torch.arange(BATCH).remainder(4).repeat(STEPS)), batch_size=BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    keeper = BestWeights(accelerator, every=16 if args.fixed else 1)

    for step, (tokens, labels) in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        keeper.update(step, loss.item(), model)
    print("best", keeper.best)
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
