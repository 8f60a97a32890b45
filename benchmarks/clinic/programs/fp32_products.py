import argparse
import time

import torch
from torch import nn


def build(width):
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))  # planted


def main(device, scale, fixed):
    torch.set_float32_matmul_precision("high" if fixed else "highest")
    torch.manual_seed(0)
    width = max(8, int((4096 if device == "cuda" else 128) * scale))
    model = build(width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(width, width, device=device)
    for step in range(45):
        if step == 8:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter_ns()
        loss = model(x).square().mean()  # planted
        optimizer.zero_grad()
        loss.backward()  # planted
        optimizer.step()
    print(loss.item())
    return (time.perf_counter_ns() - start) // 37


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", default="cuda")
    cli.add_argument("--scale", type=float, default=1.0)
    cli.add_argument("--fixed", action="store_true")
    args = cli.parse_args()
    print("step_ns", main(args.device, args.scale, args.fixed))
