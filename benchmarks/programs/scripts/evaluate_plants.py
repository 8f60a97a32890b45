"""Evaluate a trained plant classifier on the test folder: accuracy per class."""
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.a = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.na = nn.BatchNorm2d(c_out)
        self.b = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.nb = nn.BatchNorm2d(c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, stride) if stride > 1 or c_in != c_out else nn.Identity()

    def forward(self, x):
        y = self.nb(self.b(F.relu(self.na(self.a(x)))))
        return F.relu(y + self.skip(x))


class PlantNet(nn.Module):
    def __init__(self, classes=38):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.layers = nn.Sequential(
            ResBlock(16, 16, 1), ResBlock(16, 32, 2), ResBlock(32, 32, 1), ResBlock(32, 64, 2), ResBlock(64, 64, 1))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def load_test_images(n=400, seed=0):
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (n, 3, 32, 32), generator=g, dtype=torch.uint8)
    return images, torch.randint(0, 38, (n,), generator=g)


MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

torch.manual_seed(0)
net = PlantNet()
net.eval()
images, labels = load_test_images()
correct, total = defaultdict(int), defaultdict(int)
times = []
with torch.no_grad():
    for image, label in zip(images, labels):
        start = time.perf_counter()
        x = ((image.float() / 255 - MEAN) / STD).unsqueeze(0)
        prediction = net(x).argmax(dim=1).item()
        correct[label.item()] += prediction == label.item()
        total[label.item()] += 1
        times.append(time.perf_counter() - start)
accuracy = sum(correct.values()) / sum(total.values())
print(f"accuracy {accuracy:.2%} on {len(images)} images")
print(f"median step {sorted(times)[len(times) // 2] * 1000:.2f} ms")
