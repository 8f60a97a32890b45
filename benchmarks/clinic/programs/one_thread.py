"""An autoencoder of wide layers; one thread was set for the login node."""

import argparse
import time

import torch
from torch import nn

STEPS = 45


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    if not args.fixed:
        torch.set_num_threads(1)  # planted
    torch.manual_seed(0)

    width = int(768 * args.scale)
    model = nn.Sequential(
        nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 64), nn.Linear(64, 2 * width), nn.GELU(),
        nn.Linear(2 * width, width),
    ).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    rows = torch.randn(256 * STEPS, width, device=args.device)

    for step, x in enumerate(rows.split(256)):
        if step == 8:
            start_ns = time.perf_counter_ns()
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
