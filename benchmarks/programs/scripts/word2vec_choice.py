"""word2vec (skip-gram, negative sampling) on a Zipf corpus."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class Corpus:
    def __init__(self, vocab_size, length, seed=3):
        self.rng = np.random.default_rng(seed)
        frequency = 1.0 / np.arange(1, vocab_size + 1)
        self.tokens = self.rng.choice(vocab_size, size=length, p=frequency / frequency.sum())
        counts = np.bincount(self.tokens, minlength=vocab_size) + 1
        self.noise = counts**0.75 / np.sum(counts**0.75)
        self.vocab_size = vocab_size

    def batches(self, count, batch_size, window, negatives):
        for _ in range(count):
            centers = self.rng.integers(window, len(self.tokens) - window, batch_size)
            offsets = self.rng.integers(1, window + 1, batch_size) * self.rng.choice([-1, 1], batch_size)
            neg = np.stack([self.draw_negatives(negatives) for _ in range(batch_size)])
            yield (torch.as_tensor(self.tokens[centers]), torch.as_tensor(self.tokens[centers + offsets]), torch.as_tensor(neg))

    def draw_negatives(self, k):
        return self.rng.choice(self.vocab_size, size=k, p=self.noise)


class SkipGram(nn.Module):
    def __init__(self, vocab_size, dim):
        super().__init__()
        self.u = nn.Embedding(vocab_size, dim, sparse=True)
        self.v = nn.Embedding(vocab_size, dim, sparse=True)
        nn.init.uniform_(self.u.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.v.weight)

    def forward(self, center, context, neg):
        u = self.u(center)
        pos_score = (u * self.v(context)).sum(-1)
        neg_score = torch.einsum("bd,bkd->bk", u, self.v(neg))
        return -(F.logsigmoid(pos_score) + F.logsigmoid(-neg_score).sum(-1)).mean()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batches", type=int, default=80)
    ap.add_argument("--batch-size", type=int, default=128)
    ap.add_argument("--negatives", type=int, default=8)
    ap.add_argument("--dim", type=int, default=128)
    opt = ap.parse_args()

    torch.manual_seed(0)
    corpus = Corpus(vocab_size=20_000, length=500_000)
    net = SkipGram(corpus.vocab_size, opt.dim)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5)
    seconds, last = [], time.perf_counter()
    for i, (center, context, neg) in enumerate(corpus.batches(opt.batches, opt.batch_size, 5, opt.negatives)):
        loss = net(center, context, neg)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        seconds.append(time.perf_counter() - last)
        last = time.perf_counter()
        if i % 20 == 0:
            print(f"batch {i}/{opt.batches} loss {loss.item():.4f}", flush=True)
    print("median step %.2f ms" % (np.median(seconds[8:]) * 1e3))
