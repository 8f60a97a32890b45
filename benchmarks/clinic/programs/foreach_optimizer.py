"""Wide layers and a small batch: most of the memory is the optimizer's."""

import argparse
import time

import torch
from torch import nn


def build_model(width, depth):
    layers = [nn.Linear(32, width), nn.SiLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.SiLU()]
    return nn.Sequential(*layers, nn.Linear(width, 4))


def build_optimizer(model, fixed):
    implementation = {"fused": True} if fixed else {"foreach": True}
    return torch.optim.AdamW(model.parameters(), lr=3e-4, **implementation)


def train(model, optimizer, inputs, targets, steps):
    for step in range(steps):
        if step == 8:
            start_ns = time.perf_counter_ns()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()  # planted
    return loss, (time.perf_counter_ns() - start_ns) // (steps - 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    net = build_model(int(1536 * options.scale), 3).to(options.device)
    inputs = torch.randn(96, 32, device=options.device)
    targets = torch.randn(96, 4, device=options.device)
    loss, step_ns = train(net, build_optimizer(net, options.fixed), inputs, targets, 30)
    print("loss", loss.item())
    print("step_ns", step_ns)
