# sequence tagger with nn.LSTM, gradients of two micro-batches per update
import argparse
import time

import torch
from torch import nn


def batches(count, device):
    generator = torch.Generator().manual_seed(0)
    pool = torch.randint(200, (16, 16, 40), generator=generator).to(device)
    for i in range(count):
        yield pool[i % 16], pool[i % 16] % 9


class Tagger(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(200, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, 9)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.embed(tokens))
        return self.out(hidden)


def train(args, updates=45, accumulate=2):
    torch.manual_seed(0)
    model = Tagger(max(8, int(96 * args.scale))).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    done = 0
    for i, (tokens, tags) in enumerate(batches(updates * accumulate, args.device)):
        if i == 8 * accumulate:
            start = time.perf_counter_ns()
        loss = nn.functional.cross_entropy(model(tokens).transpose(1, 2), tags) / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            done += 1
    print(f"{done} updates, loss {loss.item() * accumulate:.3f}")
    return (time.perf_counter_ns() - start) // (updates - 8)


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true", help="nothing is wrong here")
print("step_ns", train(parser.parse_args()))
