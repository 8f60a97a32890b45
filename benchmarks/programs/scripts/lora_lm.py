"""LoRA fine-tuning of a (pretrained) miniature decoder on an instruction set."""
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank=8, alpha=16):
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.relu(self.fc1(self.ln2(x))))


class TinyLM(nn.Module):
    def __init__(self, vocab=1000, dim=512, heads=8, layers=3, ctx=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.register_buffer("positions", torch.arange(ctx), persistent=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(self.positions[: ids.size(1)])
        for blk in self.blocks:
            x = blk(x)
        return self.head(self.ln(x))


def add_lora(model, rank, targets=("qkv", "proj")):
    """Wrap the target projections; returns the parameters to train."""
    params = []
    for blk in model.blocks:
        for name in targets:
            wrapped = LoRALinear(getattr(blk, name), rank)
            setattr(blk, name, wrapped)
            params += [wrapped.lora_a, wrapped.lora_b]
    return params


def instruction_batch(n, length, vocab, g):
    """Copy task with a prompt: only the answer counts in the loss."""
    half = length // 2
    prompt = torch.randint(2, vocab, (n, half), generator=g)
    ids = torch.cat([prompt, prompt.flip(1)], 1)
    labels = ids.clone()
    labels[:, :half] = -100
    return ids, labels


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=250)
    ap.add_argument("--batch", type=int, default=4)
    ap.add_argument("--rank", type=int, default=8)
    ap.add_argument("--lr", type=float, default=2e-3)
    args = ap.parse_args()
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(1)
    model = TinyLM()  # stands for a checkpoint
    trainable = add_lora(model, args.rank)
    print(f"training {sum(p.numel() for p in trainable):,} of {sum(p.numel() for p in model.parameters()):,}")
    opt = torch.optim.AdamW(trainable, lr=args.lr, weight_decay=0.0, fused=True)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 20))
    t0 = time.time()
    model.train()
    for step in range(1, args.steps + 1):
        ids, labels = instruction_batch(args.batch, 64, 1000, g)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids)
        logits = logits.float()
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), labels[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        opt.step()
        sched.step()
        opt.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} ({step / (time.time() - t0):.1f} it/s)")
    print(f"elapsed {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
