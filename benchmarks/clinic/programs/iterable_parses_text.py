"""Click logs: an iterable data set parses a line of text for each sample."""
import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class ClickLog(IterableDataset):
    def __init__(self, lines, parsed=None):
        self.lines = lines
        self.parsed = parsed

    def __iter__(self):
        if self.parsed is not None:
            yield from self.parsed
            return
        for line in self.lines:
            yield parse(line)  # planted


def parse(line):
    label, *fields = line.rstrip("\n").split("\t")
    numbers = [float(field) if field else 0.0 for field in fields[:39]]
    categories = [int(field, 16) % 1000 for field in fields[39:]]
    return torch.tensor(numbers), torch.tensor(categories), torch.tensor(float(label))  # planted


def write_lines(count):
    rng = random.Random(7)
    lines = []
    for i in range(256):
        numbers = "\t".join(f"{rng.gauss(0, 1):.5f}" for _ in range(39))
        lines.append(f"{i % 2}\t{numbers}\t" + "\t".join(f"{rng.getrandbits(32):08x}" for _ in range(104)))
    return [lines[i % 256] for i in range(count)]


class ClickModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(1000, 32, mode="sum")
        self.mlp = nn.Sequential(nn.Linear(71, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, numbers, categories):
        return self.mlp(torch.cat([numbers, self.bag(categories)], 1))[:, 0]


def run():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--fixed", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    lines = write_lines(options.steps * 64)
    known = {line: parse(line) for line in set(lines)} if options.fixed else None
    stream = ClickLog(lines, [known[line] for line in lines] if known else None)
    loader = DataLoader(stream, batch_size=64)  # planted
    model = ClickModel(max(8, int(768 * options.scale))).to(options.device)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, fused=True)
    batches = iter(loader)
    for step in range(options.steps):
        if step == 8:
            clock = time.perf_counter_ns()
        numbers, categories, clicked = (part.to(options.device) for part in next(batches))
        loss = nn.functional.binary_cross_entropy_with_logits(model(numbers, categories), clicked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("logloss", loss.item())
    print("step_ns", (time.perf_counter_ns() - clock) // (options.steps - 8))


run()
