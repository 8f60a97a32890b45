"""Samples a gallery of images with DDIM from a small denoiser.

    python ddim_gallery.py --images 24
"""
import argparse
import math
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, emb):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.emb = nn.Linear(emb, channels)

    def forward(self, x, emb):
        h = self.conv(nn.functional.silu(self.norm(x)))
        return x + h + self.emb(emb)[:, :, None, None]


class Denoiser(nn.Module):
    def __init__(self, channels=16, blocks=6, emb=64):
        super().__init__()
        self.emb = emb
        self.time = nn.Sequential(nn.Linear(emb, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Block(channels, emb) for _ in range(blocks))
        self.out = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, x, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(self.emb // 2) / (self.emb // 2))
        args = t[:, None].float() * freqs[None]
        emb = self.time(torch.cat([args.sin(), args.cos()], dim=1))
        h = self.stem(x)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


@torch.inference_mode()
def sample(model, alphas, shape, steps):
    x = torch.randn(shape)
    times = torch.linspace(len(alphas) - 1, 0, steps).long().tolist()
    for now, then in zip(times, [*times[1:], -1]):
        noise = model(x, torch.full((shape[0],), now))
        a = alphas[now]
        b = alphas[then] if then >= 0 else torch.ones(())
        clean = (x - (1 - a).sqrt() * noise) / a.sqrt()
        x = b.sqrt() * clean + (1 - b).sqrt() * noise
    return x


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Denoiser().eval()
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0)
    start = time.perf_counter()
    gallery = []
    for _ in range(args.images):
        gallery.append(sample(model, alphas, (1, 1, 12, 12), args.steps))
    images = torch.cat(gallery)
    spent = time.perf_counter() - start
    print(f"{len(images)} images, mean step {spent / len(images) / args.steps * 1e3:.3f} ms, {images.std():.3f}")


if __name__ == "__main__":
    main()
