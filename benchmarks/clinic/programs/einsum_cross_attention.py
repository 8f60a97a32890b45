"""Latent queries read a long sequence by cross-attention, written with einsum."""
import argparse
import math
import time

import torch
from torch import einsum, nn


class ReadIn(nn.Module):
    def __init__(self, dim, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(dim)

    def split(self, t):
        b, n, d = t.shape
        return t.reshape(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)

    def forward(self, latents, sequence):
        q = self.split(self.to_q(self.norm(latents)))
        k, v = (self.split(t) for t in self.to_kv(sequence).chunk(2, dim=-1))
        if self.fused:
            out = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            sim = einsum("b h i d, b h j d -> b h i j", q, k) / math.sqrt(q.shape[-1])  # planted
            attn = sim.softmax(dim=-1)  # planted
            out = einsum("b h i j, b h j d -> b h i d", attn, v)  # planted
        b, h, n, d = out.shape
        return latents + out.permute(0, 2, 1, 3).reshape(b, n, h * d)


class Reader(nn.Module):
    def __init__(self, dim=64, heads=4, latents=256, depth=3, fused=False):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim) * 0.02)
        self.layers = nn.ModuleList(ReadIn(dim, heads, fused) for _ in range(depth))
        self.head = nn.Linear(dim, 5)

    def forward(self, sequence):
        z = self.latents.expand(len(sequence), -1, -1)
        for layer in self.layers:
            z = layer(z, sequence)
        return self.head(z.mean(1))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cpu")
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--fixed", action="store_true")
    a = p.parse_args()
    torch.manual_seed(0)
    model = Reader(fused=a.fixed).to(a.device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    seq = torch.randn(4, int(1024 * a.scale), 64, device=a.device)
    label = torch.randint(5, (4,), device=a.device)
    for i in range(22):
        if i == 8:
            t = time.perf_counter_ns()
        opt.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(seq), label)
        loss.backward()
        opt.step()
    print("step_ns", (time.perf_counter_ns() - t) // 14)
    print("loss", loss.item())
