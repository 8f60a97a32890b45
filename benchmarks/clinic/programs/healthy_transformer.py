import argparse, time
import torch
import torch.nn as nn
import torch.nn.functional as F

# tiny GPT; fused attention, fused AdamW, logs every 20 iterations
p = argparse.ArgumentParser()
p.add_argument("--device", default="cpu")
p.add_argument("--scale", type=float, default=1.0)
p.add_argument("--fixed", action="store_true", help="nothing is wrong here")
args = p.parse_args()
torch.manual_seed(1337)

batch_size, block_size, n_embd, n_head, vocab = 8, 64, max(32, int(192 * args.scale) // 32 * 32), 4, 96
data = torch.randint(vocab, (100_000,), device=args.device)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.up, self.down = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, n_head, C // n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln, self.head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos.weight
        return F.cross_entropy(self.head(self.ln(self.blocks(x))).flatten(0, 1), targets.flatten())


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size, 1), device=args.device)
    rows = data[ix + torch.arange(block_size + 1, device=args.device)]
    return rows[:, :-1], rows[:, 1:]


model = GPT().to(args.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for it in range(48):
    if it == 8:
        t0 = time.perf_counter_ns()
    loss = model(*get_batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if it % 20 == 0:
        print(f"iter {it}: loss {loss.item():.4f}")
print("step_ns", (time.perf_counter_ns() - t0) // 40)
