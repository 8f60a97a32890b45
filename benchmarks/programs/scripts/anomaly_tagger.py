"""Named entities: a character CNN, a BiGRU, and a tag score per word. (NaNs in March; see notes.)"""
from __future__ import annotations

import random
import time
from statistics import median
from typing import Iterator, NamedTuple

import torch
from torch import nn

torch.autograd.set_detect_anomaly(True)

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]


class Batch(NamedTuple):
    words: torch.Tensor
    chars: torch.Tensor
    tags: torch.Tensor


def batches(n: int, size: int = 12, length: int = 20, word_len: int = 8) -> Iterator[Batch]:
    g = torch.Generator().manual_seed(21)
    for _ in range(n):
        tags = torch.randint(0, len(TAGS), (size, length), generator=g)
        words = torch.randint(0, 500, (size, length), generator=g) * len(TAGS) + tags
        chars = torch.randint(0, 60, (size, length, word_len), generator=g)
        yield Batch(words, chars, tags)


class Highway(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gate, self.plain = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = torch.sigmoid(self.gate(x))
        return t * torch.relu(self.plain(x)) + (1 - t) * x


class GatedUnit(nn.Module):
    """A layer-normed minimal gated unit, run over time by hand: normalisation inside the recurrence."""

    def __init__(self, dim_in: int, dim: int) -> None:
        super().__init__()
        self.inp, self.hid = nn.Linear(dim_in, 2 * dim), nn.Linear(dim, 2 * dim, bias=False)
        self.norm = nn.LayerNorm(dim)
        self.dim = dim

    def forward(self, x: torch.Tensor, backwards: bool = False) -> torch.Tensor:
        projected = self.inp(x)
        h = x.new_zeros(x.shape[0], self.dim)
        order = range(x.shape[1])
        outputs = []
        for t in reversed(order) if backwards else order:
            f, c = (projected[:, t] + self.hid(h)).chunk(2, dim=-1)
            f = torch.sigmoid(f)
            h = self.norm((1 - f) * h + f * torch.tanh(c))
            outputs.append(h)
        return torch.stack(outputs[::-1] if backwards else outputs, dim=1)


class Tagger(nn.Module):
    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.word = nn.Embedding(500 * len(TAGS), dim)
        self.char = nn.Embedding(60, 16)
        self.char_conv = nn.Conv1d(16, 32, 3, padding=1)
        self.highway = nn.Sequential(Highway(dim + 32), Highway(dim + 32))
        self.left, self.right = GatedUnit(dim + 32, dim), GatedUnit(dim + 32, dim)
        self.score = nn.Linear(2 * dim, len(TAGS))

    def forward(self, batch: Batch) -> torch.Tensor:
        b, t, c = batch.chars.shape
        chars = self.char_conv(self.char(batch.chars.view(b * t, c)).transpose(1, 2)).amax(-1)
        x = self.highway(torch.cat([self.word(batch.words), chars.view(b, t, -1)], dim=-1))
        return self.score(torch.cat([self.left(x), self.right(x, backwards=True)], dim=-1))


def fit(model: Tagger, steps: int) -> list[float]:
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02, foreach=True)
    took: list[float] = []
    for number, batch in enumerate(batches(steps)):
        t0 = time.perf_counter()
        scores = model(batch)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch.tags.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        took.append(time.perf_counter() - t0)
        if number % 20 == 0:
            print(f"{number:>4} {loss.item():.3f}")
    return took


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    print(f"median step {1e3 * median(fit(Tagger(), 70)[8:]):.2f} ms")
