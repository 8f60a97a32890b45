"""Knowledge distillation: a small student learns from a large teacher (Hinton et al., 2015)."""
import time
from dataclasses import dataclass
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 60
    batch: int = 32
    temperature: float = 4.0
    alpha: float = 0.7
    lr: float = 3e-3


class ConvNet(nn.Module):
    def __init__(self, channels, classes=20):
        super().__init__()
        stages, cin = [], 3
        for c in channels:
            stages += [nn.Conv2d(cin, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
            cin = c
        self.features = nn.Sequential(*stages)
        self.classifier = nn.Linear(cin, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


class Distiller:
    def __init__(self, teacher, student, cfg):
        self.teacher, self.student, self.cfg = teacher, student, cfg
        self.optimizer = torch.optim.AdamW(student.parameters(), lr=cfg.lr, fused=True)

    def loss(self, x, y):
        T = self.cfg.temperature
        soft = F.softmax(self.teacher(x) / T, dim=1)
        logits = self.student(x)
        kd = F.kl_div(F.log_softmax(logits / T, dim=1), soft, reduction="batchmean") * T * T
        return self.cfg.alpha * kd + (1 - self.cfg.alpha) * F.cross_entropy(logits, y)

    def train_step(self, x, y):
        loss = self.loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def fit(cfg):
    torch.manual_seed(42)
    images = torch.randn(cfg.batch * 10, 3, 32, 32)
    labels = torch.randint(0, 20, (len(images),))
    teacher = ConvNet((24, 48, 64))
    teacher.eval()
    distiller = Distiller(teacher, ConvNet((8, 16, 32)), cfg)
    times = []
    for step in range(cfg.steps):
        start = time.perf_counter()
        at = step % 10 * cfg.batch
        loss = distiller.train_step(images[at : at + cfg.batch], labels[at : at + cfg.batch])
        times.append(time.perf_counter() - start)
        if step % 20 == 0:
            print(f"[{step:4d}] loss={loss:.4f}")
    return times


if __name__ == "__main__":
    print(f"median step {median(fit(Config())[8:]) * 1e3:.2f} ms")
