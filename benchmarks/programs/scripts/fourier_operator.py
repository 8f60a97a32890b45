"""Fourier neural operator for 2-d Darcy flow, small (Li et al., 2021)."""
import time
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv2d(nn.Module):
    def __init__(self, in_channels, out_channels, modes1, modes2):
        super().__init__()
        scale = 1 / (in_channels * out_channels)
        self.out_channels, self.modes1, self.modes2 = out_channels, modes1, modes2
        shape = (in_channels, out_channels, modes1, modes2)
        self.weights1 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(*shape, dtype=torch.cfloat))

    def forward(self, x):
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros(x.shape[0], self.out_channels, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device)
        a, b = self.modes1, self.modes2
        out_ft[:, :, :a, :b] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, :a, :b], self.weights1)
        out_ft[:, :, -a:, :b] = torch.einsum("bixy,ioxy->boxy", x_ft[:, :, -a:, :b], self.weights2)
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


class FNO2d(nn.Module):
    def __init__(self, modes=8, width=16, depth=3):
        super().__init__()
        self.p = nn.Conv2d(3, width, 1)
        self.convs = nn.ModuleList([SpectralConv2d(width, width, modes, modes) for _ in range(depth)])
        self.ws = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(depth)])
        self.q = nn.Sequential(nn.Conv2d(width, 64, 1), nn.GELU(), nn.Conv2d(64, 1, 1))

    def forward(self, a, grid):
        x = self.p(torch.cat([a, grid.expand(a.shape[0], -1, -1, -1)], dim=1))
        for i, (conv, w) in enumerate(zip(self.convs, self.ws)):
            x = conv(x) + w(x)
            if i < len(self.convs) - 1:
                x = F.gelu(x)
        return self.q(x)


class LpLoss:
    def __call__(self, x, y):
        n = x.size(0)
        return ((x - y).reshape(n, -1).norm(dim=1) / y.reshape(n, -1).norm(dim=1)).mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    s, ntrain, batch_size, iterations = 64, 80, 8, 60
    a = F.interpolate(torch.rand(ntrain, 1, 8, 8), size=(s, s), mode="bicubic")
    u = F.avg_pool2d(a, 9, stride=1, padding=4) * 0.1
    g = torch.linspace(0, 1, s)
    grid = torch.stack(torch.meshgrid(g, g, indexing="ij"))[None]
    model, myloss = FNO2d(), LpLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
    took = []
    for it in range(iterations):
        t1 = time.perf_counter()
        j = it * batch_size % ntrain
        optimizer.zero_grad()
        loss = myloss(model(a[j : j + batch_size], grid), u[j : j + batch_size])
        loss.backward()
        optimizer.step()
        scheduler.step()
        t2 = time.perf_counter()
        took.append(t2 - t1)
        if it % 15 == 0:
            print(it, t2 - t1, loss.item())
    print(f"median step {median(took[8:]) * 1e3:.2f} ms")
