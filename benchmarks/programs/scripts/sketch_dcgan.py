"""DCGAN on 32x32 line sketches."""
import argparse
import time

import torch
from torch import nn

NZ, NGF, NDF = 64, 24, 24


def sketches(n, size=32, seed=0):
    """Random circles and bars, as grey images in [-1, 1]."""
    g = torch.Generator().manual_seed(seed)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cx, cy, r = (torch.rand(3, n, 1, 1, generator=g) * torch.tensor([16, 16, 8]).view(3, 1, 1, 1) + 8).unbind(0)
    ring = ((xx - cx) ** 2 + (yy - cy) ** 2).sqrt().sub(r).abs() < 1.5
    bar = (xx - cx).abs() < 1
    pick = torch.rand(n, 1, 1, generator=g) < 0.7
    return torch.where(pick, ring, bar).float().mul(2).sub(1).unsqueeze(1)


def weights_init(m):
    name = m.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(NZ, NGF * 4, 4, 1, 0, bias=False), nn.BatchNorm2d(NGF * 4), nn.ReLU(True),
            nn.ConvTranspose2d(NGF * 4, NGF * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(NGF * 2), nn.ReLU(True),
            nn.ConvTranspose2d(NGF * 2, NGF, 4, 2, 1, bias=False), nn.BatchNorm2d(NGF), nn.ReLU(True),
            nn.ConvTranspose2d(NGF, 1, 4, 2, 1, bias=False), nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, NDF, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, True),
            nn.Conv2d(NDF, NDF * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(NDF * 2), nn.LeakyReLU(0.2, True),
            nn.Conv2d(NDF * 2, 1, 8, 1, 0, bias=False),
        )

    def forward(self, x):
        return self.main(x).flatten()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=90)
    ap.add_argument("--batch", type=int, default=40)
    opt = ap.parse_args()
    torch.manual_seed(0)
    data = sketches(4096)
    netG, netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
    optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999), fused=True)
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(opt.batch), torch.zeros(opt.batch)

    times, cpu = [], time.process_time()
    for it in range(opt.iters):
        tick = time.perf_counter()
        real = data[torch.randint(0, len(data), (opt.batch,))]
        fake = netG(torch.randn(opt.batch, NZ, 1, 1))

        # update D
        optD.zero_grad()
        errD_real = bce(netD(real), ones)
        errD_fake = bce(netD(fake), zeros)
        errD = errD_real + errD_fake
        errD.backward(retain_graph=True)
        optD.step()

        # update G
        optG.zero_grad()
        errG = bce(netD(fake), ones)
        errG.backward()
        optG.step()

        times.append(time.perf_counter() - tick)
        if it % 50 == 0:
            print(f"[{it}/{opt.iters}] D {errD.item():.3f} G {errG.item():.3f}")
    times.sort()
    print(f"median step {times[len(times) // 2] * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
