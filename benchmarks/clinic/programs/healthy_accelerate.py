"""Gradient accumulation with accelerate, with nothing wrong."""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, BATCH, MICRO_BATCHES = 45, 64, 4


class Mixer(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.tokens = nn.Sequential(nn.Linear(tokens, tokens), nn.GELU())
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = x + self.tokens(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.channels(x)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="changes nothing: nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    accelerator = Accelerator(cpu=args.device == "cpu", gradient_accumulation_steps=MICRO_BATCHES)
    count, width = BATCH * MICRO_BATCHES * STEPS, int(96 * args.scale)
    data = TensorDataset(torch.randn(512, 16, width), torch.randint(0, 10, (512,)))
    sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=count)
    model = Mixer(16, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for number, (x, y) in enumerate(loader):
        if number == 8 * MICRO_BATCHES:
            start_ns = time.perf_counter_ns()
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
