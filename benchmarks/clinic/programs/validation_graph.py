"""A denoising autoencoder; each fourth step the whole validation set is passed through it."""

import argparse
import contextlib
import time

import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [64, 320, 320, 320, 320, 64]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.sigmoid(layer(x))
        return self.layers[-1](x)


def validate(model, clean, no_graph):
    model.eval()
    with torch.no_grad() if no_graph else contextlib.nullcontext():
        error = (model(clean) - clean).square().mean()  # planted
    model.train()
    return error.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Autoencoder().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    clean = torch.randn(int(3072 * args.scale), 64, device=args.device)
    held_out = torch.randn(int(32768 * args.scale), 64, device=args.device)
    errors = []
    for step in range(60):
        if step == 8:
            started = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = (model(clean + 0.1 * torch.randn_like(clean)) - clean).square().mean()
        loss.backward()
        optimizer.step()
        if step % 4 == 3:
            errors.append(validate(model, held_out, args.fixed))  # planted
    print("loss", loss.item(), "best", min(errors))
    print("step_ns", (time.perf_counter_ns() - started) // 52)


main()
