"""minGPT with T5's relative position bias instead of position embeddings."""
import math
import time
from statistics import median

import torch
import torch.nn as nn
from torch.nn import functional as F

n_layer, n_head, n_embd, block_size, vocab_size = 4, 4, 96, 64, 256
batch_size, max_iters, learning_rate = 8, 60, 1e-3
num_buckets, max_distance = 32, 64


def relative_position_bucket(distance):
    """T5: half of the buckets are exact, the others grow logarithmically."""
    distance = max(distance, 0)
    exact = num_buckets // 2
    if distance < exact:
        return distance
    log_ratio = math.log(distance / exact) / math.log(max_distance / exact)
    return min(exact + int(log_ratio * (num_buckets - exact)), num_buckets - 1)


class RelativeBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(num_buckets, n_head)

    def forward(self, T):
        buckets = torch.tensor([[relative_position_bucket(i - j) for j in range(T)] for i in range(T)])
        bias = self.table(buckets).permute(2, 0, 1)
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        return bias.masked_fill(~mask, float("-inf"))


class CausalSelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.bias = RelativeBias()

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(n_embd, dim=2)
        q, k, v = (y.view(B, T, n_head, C // n_head).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(T))
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention()
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


torch.manual_seed(1337)
data = torch.randint(0, vocab_size, (100_000,))


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    return torch.stack([data[i : i + block_size] for i in ix]), torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), fused=True)
iter_times = []
for it in range(max_iters):
    t0 = time.perf_counter()
    xb, yb = get_batch()
    loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    iter_times.append(time.perf_counter() - t0)
    if it % 20 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
print(f"median step {median(iter_times[8:]) * 1e3:.2f} ms")
