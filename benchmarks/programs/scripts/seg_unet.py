"""Semantic segmentation of synthetic street scenes with a small U-Net; train mIoU is tracked."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 19


def make_scene(n, size, g):
    """Rectangles of random classes over a background; the colour depends on the class."""
    mask = torch.zeros(n, size, size, dtype=torch.long)
    palette = torch.linspace(-1, 1, CLASSES * 3).view(CLASSES, 3)[torch.randperm(CLASSES, generator=g)]
    for i in range(n):
        for c in range(1, CLASSES):
            y, x, h, w = torch.randint(4, size // 2, (4,), generator=g).tolist()
            mask[i, y:y + h, x:x + w] = c
    image = palette[mask].permute(0, 3, 1, 2) + 0.2 * torch.randn(n, 3, size, size, generator=g)
    return image.contiguous(), mask


def block(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.d1, self.d2, self.d3 = block(3, base), block(base, base * 2), block(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, 2)
        self.u2 = block(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, 2)
        self.u1 = block(base * 2, base)
        self.head = nn.Conv2d(base, CLASSES, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([self.up2(c), b], 1))
        a = self.u1(torch.cat([self.up1(b), a], 1))
        return self.head(a)


class SegmentationMeter:
    """Confusion matrix, pixel accuracy and mean IoU."""

    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.reset()

    def reset(self):
        self.confusion = torch.zeros(self.num_classes, self.num_classes, dtype=torch.long)

    def update(self, pred, target):
        for t in range(self.num_classes):
            for p in range(self.num_classes):
                self.confusion[t, p] += ((target == t) & (pred == p)).sum()

    def scores(self):
        tp = self.confusion.diag().float()
        union = self.confusion.sum(0) + self.confusion.sum(1) - tp
        return (tp.sum() / self.confusion.sum()).item(), (tp / union.clamp(min=1)).mean().item()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--size", type=int, default=64)
    args = ap.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    images, masks = make_scene(256, args.size, g)
    model, meter = UNet(), SegmentationMeter(CLASSES)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    t0, it = time.time(), 0
    while it < args.steps:
        for idx in torch.randperm(len(images)).split(args.batch):
            x, y = images[idx], masks[idx]
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            meter.update(logits.argmax(1), y)
            it += 1
            if it % 50 == 0:
                acc, miou = meter.scores()
                print(f"iter {it} loss {loss.item():.3f} acc {acc:.3f} mIoU {miou:.3f}")
                meter.reset()
            if it >= args.steps:
                break
    print(f"{it} iterations in {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
