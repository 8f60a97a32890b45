# GAN on vectors: generator and discriminator are trained in turns, each with its own Adam
import argparse
import time

import torch
from torch import nn


def mlp(sizes, slope=0.2):
    layers = []
    for n_in, n_out in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(n_in, n_out), nn.LeakyReLU(slope)]
    return nn.Sequential(*layers[:-1])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cpu")
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--depth", type=int, default=16)
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--fixed", action="store_true")
    opt = p.parse_args()

    torch.manual_seed(0)
    width = max(16, int(96 * opt.scale))
    G = mlp([32] + [width] * opt.depth + [64]).to(opt.device)
    D = mlp([64] + [width] * opt.depth + [1]).to(opt.device)
    how = dict(fused=True) if opt.fixed else dict(foreach=False) if opt.device == "cuda" else {}
    opt_g = torch.optim.Adam(G.parameters(), lr=2e-4, betas=(0.5, 0.999), **how)  # planted
    opt_d = torch.optim.Adam(D.parameters(), lr=2e-4, betas=(0.5, 0.999), **how)  # planted
    bce = nn.BCEWithLogitsLoss()
    data = torch.randn(1024, 64, device=opt.device)
    ones = torch.ones(opt.batch, 1, device=opt.device)
    zeros = torch.zeros(opt.batch, 1, device=opt.device)

    for it in range(opt.steps):
        if it == 8:
            t0 = time.perf_counter_ns()
        real = data[torch.randint(len(data), (opt.batch,), device=opt.device)]
        fake = G(torch.randn(opt.batch, 32, device=opt.device))

        # discriminator
        opt_d.zero_grad()
        loss_d = bce(D(real), ones) + bce(D(fake.detach()), zeros)
        loss_d.backward()
        opt_d.step()  # planted

        # generator
        opt_g.zero_grad()
        loss_g = bce(D(fake), ones)
        loss_g.backward()
        opt_g.step()  # planted
    print("loss_d", loss_d.item(), "loss_g", loss_g.item())
    print("step_ns", (time.perf_counter_ns() - t0) // (opt.steps - 8))


main()
