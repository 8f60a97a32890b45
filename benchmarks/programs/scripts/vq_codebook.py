#!/usr/bin/env python3
# VQ-VAE on 32x32 textures, straight-through estimator.
import math, sys, time
import torch
from torch import nn, optim
from torch.nn import functional as F

K, D, BETA = 512, 32, 0.25
BATCH, STEPS = 12, int(sys.argv[1]) if len(sys.argv) > 1 else 60


def textures(n):
    yy, xx = torch.meshgrid(torch.linspace(0, 1, 32), torch.linspace(0, 1, 32), indexing="ij")
    freq = torch.randint(1, 8, (n, 3, 1, 1)).float()
    phase = torch.rand(n, 3, 1, 1) * 2 * math.pi
    return torch.sin(2 * math.pi * freq * (xx + yy * torch.rand(n, 1, 1, 1)) + phase)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c1 = nn.Conv2d(c, c // 2, 3, padding=1)
        self.c2 = nn.Conv2d(c // 2, c, 1)

    def forward(self, x):
        return x + self.c2(F.relu(self.c1(F.relu(x))))


class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codebook = nn.Parameter(torch.empty(K, D).uniform_(-1 / K, 1 / K))

    def forward(self, z):
        b, d, h, w = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, d)
        # squared distance of every vector to every code
        dist = ((flat.unsqueeze(1) - self.codebook.unsqueeze(0)) ** 2).sum(-1)
        idx = dist.argmin(1)
        q = self.codebook[idx].view(b, h, w, d).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + BETA * F.mse_loss(z, q.detach())
        return z + (q - z).detach(), loss, idx


class VQVAE(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, c, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(c, c, 4, 2, 1), Residual(c), nn.Conv2d(c, D, 1),
        )
        self.vq = Quantizer()
        self.dec = nn.Sequential(
            nn.Conv2d(D, c, 3, padding=1), Residual(c),
            nn.ConvTranspose2d(c, c, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
        )

    def forward(self, x):
        q, vq_loss, idx = self.vq(self.enc(x))
        return self.dec(q), vq_loss, idx


torch.manual_seed(42)
data = textures(BATCH * 16)
net = VQVAE()
opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
clock, last = [], time.perf_counter()
for it in range(STEPS):
    at = (it % 16) * BATCH
    x = data[at:at + BATCH]
    recon, vq_loss, codes = net(x)
    loss = F.mse_loss(recon, x) + vq_loss
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    now = time.perf_counter()
    clock.append(now - last)
    last = now
    if it % 20 == 19:
        print("iter %d  loss %.4f  codes in use %d" % (it + 1, loss.item(), codes.unique().numel()))

clock = sorted(clock[5:])
print("median step %.2f ms" % (clock[len(clock) // 2] * 1000))
