"""WGAN critic for 2-D densities; spectral norms by 30 power iterations in each forward pass of each layer."""
import time
from itertools import count

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)


def l2(v):
    return v / (v.norm() + 1e-12)


class SNLinear(nn.Module):
    def __init__(self, i, o, n_power=30):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / i ** 0.5)
        self.bias = nn.Parameter(torch.zeros(o))
        self.n_power = n_power

    def sigma(self):
        with torch.no_grad():
            u = l2(torch.randn(self.weight.size(0)))
            for _ in range(self.n_power):
                v = l2(self.weight.t() @ u)
                u = l2(self.weight @ v)
        return u @ self.weight @ v

    def forward(self, x):
        return F.linear(x, self.weight / self.sigma(), self.bias)


def critic(width=192):
    return nn.Sequential(SNLinear(2, width), nn.LeakyReLU(0.2), SNLinear(width, width), nn.LeakyReLU(0.2),
                         SNLinear(width, width), nn.LeakyReLU(0.2), SNLinear(width, 1))


def generator(width=192):
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def real(n):
    k = torch.randint(0, 8, (n,)) * torch.pi / 4
    return torch.stack([k.cos(), k.sin()], 1) + 0.05 * torch.randn(n, 2)


D, G = critic(), generator()
opt_d = torch.optim.RMSprop(D.parameters(), lr=5e-4)
opt_g = torch.optim.RMSprop(G.parameters(), lr=5e-4)
times = []
for i in count():
    if i == 60:
        break
    t = time.perf_counter()
    with torch.no_grad():
        fake = G(torch.randn(128, 16))
    d_loss = D(fake).mean() - D(real(128)).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = -D(G(torch.randn(128, 16))).mean()
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    times.append(time.perf_counter() - t)
    if i % 20 == 0:
        print("it %d  W %.3f" % (i, -d_loss.item()))
print("median step %.2f ms" % (sorted(times)[30] * 1e3))
