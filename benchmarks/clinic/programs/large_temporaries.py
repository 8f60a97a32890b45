"""Denoise long recordings: element-wise filters on arrays of 36 MB, of which each is a fresh one."""
import argparse
import os
import sys
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--steps", type=int, default=36)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

# glibc reads these when a process starts: with them it keeps what is freed, and gives it out again.
KEEP_PAGES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
if args.fixed and not KEEP_PAGES.items() <= os.environ.items():
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_PAGES})


class Denoiser(nn.Module):
    """A gain for each band, a soft threshold, and a mix with the input."""

    def __init__(self, bands):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(bands, 1))
        self.threshold = nn.Parameter(torch.full((bands, 1), 0.1))
        self.mix = nn.Parameter(torch.tensor(0.5))

    def forward(self, recording):
        kept = torch.relu(recording * self.gain - self.threshold)
        return torch.lerp(recording, kept, self.mix)


def main():
    torch.manual_seed(0)
    samples = max(1000, int(140_000 * args.scale))
    clean = torch.randn(64, samples, device=args.device)
    noisy = clean + 0.3 * torch.randn_like(clean)
    model = Denoiser(64).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for step in range(args.steps):
        if step == 8:
            start = time.perf_counter_ns()
        loss = (model(noisy) - clean).square().mean()  # planted
        optimizer.zero_grad()
        loss.backward()  # planted
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))


main()
