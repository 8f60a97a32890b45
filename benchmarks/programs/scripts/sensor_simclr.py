"""SimCLR on wearable-sensor windows: two augmented views, a 1-d CNN, NT-Xent."""
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self, channels=6, width=64, out=64):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv1d(channels, width, 7, stride=2, padding=3), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, 2 * width, 5, stride=2, padding=2), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.Conv1d(2 * width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm1d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )
        self.projector = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, out))

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=1)


def augment(x):
    """Scale, jitter and a random half of the channels off, for the whole batch at once."""
    n, c, _ = x.shape
    scale = 1 + 0.2 * torch.randn(n, c, 1)
    keep = torch.bernoulli(torch.full((n, c, 1), 0.85))
    return torch.addcmul(x.new_zeros(()), x, scale * keep) + 0.05 * torch.randn_like(x)


def nt_xent(z1, z2, temperature=0.2):
    z = torch.cat([z1, z2])
    n = len(z1)
    sim = z @ z.T / temperature
    sim.fill_diagonal_(-torch.inf)
    target = torch.arange(2 * n).roll(n)
    return F.cross_entropy(sim, target)


def windows(n, length=128, channels=6):
    t = torch.arange(length) / 32
    freq = torch.rand(n, channels, 1) * 3 + 0.5
    return torch.sin(2 * math.pi * freq * t + torch.rand(n, channels, 1) * 6) + 0.1 * torch.randn(n, channels, length)


def train(steps=120, batch=96):
    torch.manual_seed(11)
    data = windows(6000)
    net = Encoder()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    times, losses, cpu = [], torch.zeros(steps), time.process_time()
    for step in range(steps):
        t0 = time.perf_counter()
        x = data[torch.randint(len(data), (batch,))]
        z1, z2 = net(torch.cat([augment(x), augment(x)])).chunk(2)
        loss = nt_xent(z1, z2)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        losses[step] = loss.detach()
        times.append(time.perf_counter() - t0)
    print(f"loss {losses[:20].mean():.3f} -> {losses[-20:].mean():.3f}")
    print(f"median step {sorted(times)[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    train()
