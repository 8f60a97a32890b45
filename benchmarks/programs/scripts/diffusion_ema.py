"""Toy DDPM on 2-d data (two moons), sampling from an exponential moving average of the weights."""
import copy
import math
import time
from statistics import median

import torch
import torch.nn as nn


class SinusoidalEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        half = dim // 2
        self.register_buffer("freqs", torch.exp(-math.log(10000) * torch.arange(half) / half))

    def forward(self, t):
        args = t[:, None].float() * self.freqs[None]
        return torch.cat([args.sin(), args.cos()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1, self.fc2, self.emb = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x, t):
        return x + self.fc2(torch.nn.functional.silu(self.fc1(self.norm(x)) + self.emb(t)))


class Denoiser(nn.Module):
    def __init__(self, dim=64, depth=12):
        super().__init__()
        self.time = nn.Sequential(SinusoidalEmbedding(dim), nn.Linear(dim, dim), nn.SiLU())
        self.inp, self.out = nn.Linear(2, dim), nn.Linear(dim, 2)
        self.blocks = nn.ModuleList([ResBlock(dim) for _ in range(depth)])

    def forward(self, x, t):
        t, x = self.time(t), self.inp(x)
        for block in self.blocks:
            x = block(x, t)
        return self.out(x)


class EMA:
    def __init__(self, model, decay=0.999):
        self.decay = decay
        self.model = copy.deepcopy(model).eval()

    def update(self, model):
        ema_state, state = self.model.state_dict(), model.state_dict()
        for name in state:
            new = self.decay * ema_state[name].detach().clone() + (1 - self.decay) * state[name].detach().clone()
            ema_state[name].copy_(new)


class GaussianDiffusion:
    def __init__(self, T=200):
        self.T = T
        betas = torch.linspace(1e-4, 0.02, T)
        self.abar = torch.cumprod(1 - betas, 0)

    def training_loss(self, model, x0):
        t = torch.randint(0, self.T, (len(x0),))
        noise = torch.randn_like(x0)
        a = self.abar[t][:, None]
        return ((model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t) - noise) ** 2).mean()


def two_moons(n):
    angle = math.pi * torch.rand(n)
    up = (torch.arange(n) % 2 == 0).float()
    x = angle.cos() + (1 - up)
    y = angle.sin() * (2 * up - 1) + 0.5 * (1 - up)
    return torch.stack([x, y], 1) + 0.05 * torch.randn(n, 2)


def run(iterations=100, batch=128):
    torch.manual_seed(0)
    model, diffusion = Denoiser(), GaussianDiffusion()
    ema = EMA(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    data, clock = two_moons(10_000), []
    for it in range(iterations):
        tick = time.perf_counter()
        x0 = data[torch.randint(len(data), (batch,))]
        loss = diffusion.training_loss(model, x0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        clock.append(time.perf_counter() - tick)
        if it % 20 == 0:
            print(f"it {it} loss {loss.item():.4f}")
    return clock


print(f"median step {median(run()[8:]) * 1e3:.2f} ms")
