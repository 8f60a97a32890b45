"""Cell segmentation with a small U-Net. Elastic deformation as in the original paper, on the fly."""
import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils import data


def gaussian_kernel(sigma):
    radius = int(3 * sigma)
    x = np.arange(-radius, radius + 1)
    k = np.exp(-(x ** 2) / (2 * sigma ** 2))
    return k / k.sum()


def smooth(field, sigma):
    k = gaussian_kernel(sigma)
    field = np.apply_along_axis(np.convolve, 0, field, k, mode="same")
    return np.apply_along_axis(np.convolve, 1, field, k, mode="same")


def sample(image, y, x):
    """Bilinear interpolation, edges clamped."""
    h, w = image.shape
    y, x = np.clip(y, 0, h - 1.001), np.clip(x, 0, w - 1.001)
    y0, x0 = y.astype(int), x.astype(int)
    dy, dx = y - y0, x - x0
    top = image[y0, x0] * (1 - dx) + image[y0, x0 + 1] * dx
    bottom = image[y0 + 1, x0] * (1 - dx) + image[y0 + 1, x0 + 1] * dx
    return top * (1 - dy) + bottom * dy


class Elastic:
    def __init__(self, alpha=40.0, sigma=6.0):
        self.alpha, self.sigma = alpha, sigma

    def __call__(self, image, mask):
        h, w = image.shape
        dy = smooth(np.random.uniform(-1, 1, (h, w)), self.sigma) * self.alpha
        dx = smooth(np.random.uniform(-1, 1, (h, w)), self.sigma) * self.alpha
        yy, xx = np.meshgrid(np.arange(h), np.arange(w), indexing="ij")
        return sample(image, yy + dy, xx + dx), sample(mask, yy + dy, xx + dx) > 0.5


class Cells(data.Dataset):
    def __init__(self, n, size=64, transform=None):
        rng = np.random.RandomState(0)
        yy, xx = np.mgrid[:size, :size]
        self.images, self.masks, self.transform = [], [], transform
        for _ in range(n):
            mask = np.zeros((size, size))
            for cy, cx, r in zip(*rng.randint(4, size - 4, (2, 6)), rng.randint(4, 10, 6)):
                mask[(yy - cy) ** 2 + (xx - cx) ** 2 < r * r] = 1
            self.masks.append(mask)
            self.images.append(mask * 0.6 + rng.normal(0, 0.2, mask.shape))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        if self.transform:
            image, mask = self.transform(image, mask)
        return torch.from_numpy(image).float()[None], torch.from_numpy(np.asarray(mask)).float()[None]


def double(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.d1, self.d2, self.d3 = double(1, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, 2), nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.u2, self.u1, self.out = double(4 * c, 2 * c), double(2 * c, c), nn.Conv2d(c, 1, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(self.pool(a))
        x = self.up2(self.d3(self.pool(b)))
        x = self.up1(self.u2(torch.cat([x, b], 1)))
        return self.out(self.u1(torch.cat([x, a], 1)))


def dice(logits, y):
    p = logits.sigmoid()
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    a = ap.parse_args()
    torch.manual_seed(0)
    ds = Cells(160, transform=Elastic())
    dl = data.DataLoader(ds, batch_size=8, shuffle=True)
    net = UNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.99)
    ticks = []
    for ep in range(a.epochs):
        t = time.perf_counter()
        for x, y in dl:
            z = net(x)
            loss = nn.functional.binary_cross_entropy_with_logits(z, y) + dice(z, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ticks.append(time.perf_counter() - t)
            t = time.perf_counter()
        print("epoch", ep, float(loss))
    print("median step {:.2f} ms".format(np.median(ticks[4:]) * 1e3))
