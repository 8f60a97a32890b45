"""A small transformer that checkpoints each of its blocks, on a machine with plenty of memory."""

import argparse
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
args = parser.parse_args()

WIDTH, LENGTH, BATCH, BLOCKS, WORDS = 96, 64, 8, 4, 300


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, gradient_checkpointing):
        super().__init__()
        self.gradient_checkpointing = gradient_checkpointing
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            if self.gradient_checkpointing:
                x = checkpoint(block, x, use_reentrant=False)  # planted
            else:
                x = block(x)
        return self.head(x)


def main():
    torch.manual_seed(0)
    device = torch.device(args.device)
    model = Model(gradient_checkpointing=not args.fixed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    text = torch.randint(WORDS, (BATCH * 8, LENGTH + 1))
    times = []
    for step in range(max(int(40 * args.scale), 12)):
        start = time.perf_counter()
        rows = text[(step % 8) * BATCH :][:BATCH].to(device)
        scores = model(rows[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    print(f"loss {loss.item():.3f}")
    print(f"step_ns {sum(times[8:]) / len(times[8:]) * 1e9:.0f}")


if __name__ == "__main__":
    main()
