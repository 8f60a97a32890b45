"""Denoising diffusion on 28x28 digits, epsilon prediction, with a foreach EMA of the weights."""
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def time_embedding(t, dim):
    freqs = torch.exp(-math.log(10_000) * torch.arange(dim // 2) / (dim // 2))
    angles = t[:, None].float() * freqs[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Residual(nn.Module):
    def __init__(self, c_in, c_out, temb=128):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, c_out), nn.Conv2d(c_out, c_out, 3, padding=1)
        self.temb = nn.Linear(temb, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x))) + self.temb(temb)[..., None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.temb = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.inc = nn.Conv2d(1, ch, 3, padding=1)
        self.down1, self.down2 = Residual(ch, 2 * ch), Residual(2 * ch, 4 * ch)
        self.mid = Residual(4 * ch, 4 * ch)
        self.up1, self.up2 = Residual(6 * ch, 2 * ch), Residual(3 * ch, ch)
        self.out = nn.Conv2d(ch, 1, 1)

    def forward(self, x, t):
        temb = self.temb(time_embedding(t, 64))
        x0 = self.inc(x)
        x1 = self.down1(F.avg_pool2d(x0, 2), temb)
        x2 = self.mid(self.down2(F.avg_pool2d(x1, 2), temb), temb)
        y = self.up1(torch.cat([F.interpolate(x2, scale_factor=2), x1], 1), temb)
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2), x0], 1), temb)
        return self.out(y)


def main(steps=40, batch=24, timesteps=400):
    torch.manual_seed(0)
    model, ema = UNet(), UNet().requires_grad_(False)
    ema.load_state_dict(model.state_dict())
    weights, averages = list(model.parameters()), list(ema.parameters())
    opt = torch.optim.Adam(weights, lr=2e-4, fused=True)
    alpha_bar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, timesteps), 0)
    digits = torch.rand(2000, 1, 28, 28)
    times = []
    for step in range(steps):
        start = time.perf_counter()
        x0 = digits[torch.randint(0, len(digits), (batch,))] * 2 - 1
        t = torch.randint(0, timesteps, (batch,))
        noise = torch.randn_like(x0)
        a = alpha_bar[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 0.001)
        times.append(time.perf_counter() - start)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"median step {sorted(times)[len(times) // 2] * 1000:.2f} ms")


if __name__ == "__main__":
    main()
