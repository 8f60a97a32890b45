"""A small GPT block by block; attention as in the paper."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size, flash):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head, self.flash = n_head, flash
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # planted
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))  # planted
            att = F.softmax(att, dim=-1)  # planted
            y = att @ v  # planted
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
cuda = args.device == "cuda"
n_embd, T, B = max(32, int((1024 if cuda else 64) * args.scale) // 32 * 32), 1024 if cuda else 384, 8 if cuda else 2
layers = nn.ModuleList(CausalSelfAttention(n_embd, 4 if not cuda else 16, T, args.fixed) for _ in range(4 if cuda else 1)).to(args.device)
optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4, fused=True)
x = torch.randn(B, T, n_embd, device=args.device)
for it in range(45):
    if it == 8:
        if cuda:
            torch.cuda.synchronize()
        t0 = time.perf_counter_ns()
    with torch.autocast(args.device, torch.bfloat16, enabled=cuda):
        h = x
        for layer in layers:
            h = h + layer(h)
        loss = h.float().square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("loss", loss.item())
print("step_ns", (time.perf_counter_ns() - t0) // 37)
