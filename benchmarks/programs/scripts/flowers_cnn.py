"""Small CNN on synthetic 'flowers' with the usual augmentations (crop, flip, jitter, blur, erasing)."""
import argparse
import math
import random
import time
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=70)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()


class RandomRotation:
    def __init__(self, degrees):
        self.degrees = degrees

    def __call__(self, img):
        angle = math.radians(random.uniform(-self.degrees, self.degrees))
        c, s = math.cos(angle), math.sin(angle)
        theta = torch.tensor([[[c, -s, 0.0], [s, c, 0.0]]])
        grid = F.affine_grid(theta, [1, *img.shape], align_corners=False)
        return F.grid_sample(img[None], grid, align_corners=False)[0]


class GaussianBlur:
    def __init__(self, radius):
        self.radius = radius

    def __call__(self, img):
        sigma = random.uniform(0.3, 2.0)
        x = torch.arange(-self.radius, self.radius + 1, dtype=torch.float32)
        k = torch.exp(-(x**2) / (2 * sigma**2))
        k = (k / k.sum()).repeat(3, 1)
        img = F.conv2d(img[None], k[:, None, None, :], padding=(0, self.radius), groups=3)
        return F.conv2d(img, k[:, None, :, None], padding=(self.radius, 0), groups=3)[0]


class ColorJitter:
    def __call__(self, img):
        img = img * random.uniform(0.7, 1.3)
        mean = img.mean()
        img = (img - mean) * random.uniform(0.7, 1.3) + mean
        return img.clamp(0, 1)


class RandomCropFlip:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, img):
        img = F.pad(img[None], [self.padding] * 4, mode="reflect")[0]
        i, j = random.randint(0, 2 * self.padding), random.randint(0, 2 * self.padding)
        img = img[:, i : i + self.size, j : j + self.size]
        return img.flip(-1) if random.random() < 0.5 else img


class Flowers(Dataset):
    def __init__(self, n, transforms):
        g = torch.Generator().manual_seed(1)
        self.images = torch.randint(0, 256, (n, 3, 64, 64), dtype=torch.uint8, generator=g)
        self.labels = torch.randint(0, 17, (n,), generator=g)
        self.transforms = transforms

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        img = self.images[idx].float() / 255
        for t in self.transforms:
            img = t(img)
        return img, self.labels[idx]


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))


model = nn.Sequential(conv_block(3, 16), conv_block(16, 32), conv_block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 17))
train_set = Flowers(args.batch_size * args.steps, [RandomCropFlip(64, 6), RandomRotation(20), ColorJitter(), GaussianBlur(3)])
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
criterion = nn.CrossEntropyLoss()

times, tick, running = [], time.perf_counter(), 0.0
for step, (x, y) in enumerate(train_loader):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    running += loss.item()
    if step % 20 == 19:
        print(f"step {step + 1}: loss {running / 20:.3f}")
        running = 0.0
    now = time.perf_counter()
    times.append(now - tick)
    tick = now
print(f"median step {median(times[8:]) * 1e3:.2f} ms")
