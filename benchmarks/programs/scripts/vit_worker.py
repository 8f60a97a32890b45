"""A small vision transformer on crops of tiles, one worker loads."""
import argparse
import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset):
    def __init__(self, length, size=48):
        generator = torch.Generator().manual_seed(5)
        self.tiles = torch.randint(0, 256, (256, 3, 64, 64), dtype=torch.uint8, generator=generator)
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        top, left = torch.randint(0, 64 - self.size, (2,)).tolist()
        tile = self.tiles[i % 256, :, top : top + self.size, left : left + self.size]
        return tile, i % 10


class ViT(nn.Module):
    def __init__(self, patch=6, dim=96, depth=3, heads=6, size=48):
        super().__init__()
        self.to_patch = nn.Conv2d(3, dim, patch, stride=patch)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.fc = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.to_patch(x.float().div_(255)).flatten(2).transpose(1, 2)
        return self.fc(self.encoder(x + self.pos).mean(1))


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", default=60, type=int)
    p.add_argument("--batch", default=16, type=int)
    p.add_argument("--workers", default=1, type=int)
    return p.parse_args()


def train(args):
    torch.manual_seed(0)
    loader = DataLoader(Tiles(args.steps * args.batch), args.batch, shuffle=True, num_workers=args.workers)
    model = ViT()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05, fused=True)
    meter, mark = [], time.monotonic()
    for step, (images, target) in enumerate(loader):
        loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.append(time.monotonic() - mark)
        mark = time.monotonic()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}")
    print(f"median step {median(meter[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    train(get_args())
