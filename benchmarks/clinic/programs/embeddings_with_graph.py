"""Embeds a collection of images with a pretrained-style network, batch by batch, and keeps the vectors."""

import argparse
import time

import torch
from torch import nn

parser = argparse.ArgumentParser(description="image folder -> vectors")
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
options = parser.parse_args()
BATCHES = 45


def block(channels):
    return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.BatchNorm2d(channels), nn.SiLU())


class Encoder(nn.Module):
    def __init__(self, channels, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 2, stride=2)
        self.blocks = nn.ModuleList(block(channels) for _ in range(depth))
        self.norm = nn.LayerNorm(channels)

    def forward(self, images):
        x = self.stem(images)
        for each in self.blocks:
            x = x + 0.1 * each(x)
        return self.norm(x.mean((2, 3)))


torch.manual_seed(0)
side = int(64 * options.scale)
encoder = Encoder(32, 10).to(options.device).eval()
images = torch.randn(BATCHES, 16, 3, side, side, device=options.device)


def embed_all():
    vectors, start_ns = [], 0
    for number, batch in enumerate(torch.utils.data.DataLoader(images, batch_size=None)):
        if number == 8:
            start_ns = time.perf_counter_ns()
        vector = nn.functional.normalize(encoder(batch), dim=1)  # planted
        vectors.append(vector.detach().cpu())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (BATCHES - 8))
    return torch.cat(vectors)


if options.fixed:
    with torch.inference_mode():
        vectors = embed_all()
else:
    vectors = embed_all()
print("vectors", tuple(vectors.shape), "similarity", round((vectors @ vectors.T).mean().item(), 4))
