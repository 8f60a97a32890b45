"""Diffusion transformer on 16x16 glyphs: linear schedule, noise prediction, class conditioning."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def gelu_new(x):
    """The GELU of GPT-2 and BERT."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class LayerNorm(nn.Module):
    """As in the annotated transformer, without weights: the conditioning scales and shifts."""

    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return (x - mean) / (std + self.eps)


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    args = t[:, None].float() * freqs
    return torch.cat([args.cos(), args.sin()], dim=-1)


class Mlp(nn.Module):
    def __init__(self, dim, mult=4):
        super().__init__()
        self.fc1 = nn.Linear(dim, dim * mult)
        self.fc2 = nn.Linear(dim * mult, dim)

    def forward(self, x):
        return self.fc2(gelu_new(self.fc1(x)))


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = LayerNorm()
        self.norm2 = LayerNorm()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = Mlp(dim)
        self.ada = nn.Linear(dim, 4 * dim)

    def forward(self, x, c):
        shift1, scale1, shift2, scale2 = self.ada(c)[:, None].chunk(4, dim=-1)
        b, n, d = x.shape
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    def __init__(self, size=16, patch=2, dim=64, depth=4, heads=4, classes=10):
        super().__init__()
        self.patch, self.grid, self.dim = patch, size // patch, dim
        self.embed = nn.Conv2d(1, dim, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.label = nn.Embedding(classes, dim)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(depth))
        self.norm, self.head = LayerNorm(), nn.Linear(dim, patch * patch)

    def forward(self, x, t, y):
        h = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        c = self.time(timestep_embedding(t, self.dim)) + self.label(y)
        for block in self.blocks:
            h = block(h, c)
        return F.pixel_shuffle(self.head(self.norm(h)).transpose(1, 2).unflatten(2, (self.grid, self.grid)), self.patch)


def glyphs(n):
    y = torch.randint(0, 10, (n,))
    base = (torch.rand(10, 1, 16, 16, generator=torch.Generator().manual_seed(5)) > 0.6).float()
    return F.avg_pool2d(base[y], 3, 1, 1) * 2 - 1, y


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--batch", type=int, default=24)
    a = p.parse_args()
    torch.manual_seed(0)
    images, labels = glyphs(2048)
    alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    model = DiT()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    times, cpu = [], time.process_time()
    for step in range(1, a.steps + 1):
        t0 = time.perf_counter()
        pick = torch.randint(0, len(images), (a.batch,))
        x0, y = images[pick], labels[pick]
        t = torch.randint(0, 1000, (a.batch,))
        noise = torch.randn_like(x0)
        ab = alpha_bar[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t, y), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        times.append(time.perf_counter() - t0)
        if step % 30 == 0:
            print(step, round(loss.item(), 4))
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
