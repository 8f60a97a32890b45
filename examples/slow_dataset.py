"""A small model with a slow data set: the training process tokenises in Python, one sample at a time.

perfdoctor run examples/slow_dataset.py
perfdoctor run examples/slow_dataset.py --workers 2
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 1000
LENGTH = 64
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class SlowTransform:
    """Turns words into numbers in Python loops."""

    def __call__(self, words: list[str]) -> Tensor:
        """One number a word."""
        tokens = []
        for word in words:
            value = 0
            for letter in word:
                value = (value * 31 + ord(letter)) % VOCABULARY
            tokens.append(value)
        return torch.tensor(tokens)


class Sentences(Dataset):
    """Random sentences; the label says whether the first word begins in the first half of the alphabet."""

    def __init__(self, length: int, transform: SlowTransform) -> None:
        self.length = length
        self.transform = transform

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        source = random.Random(index)
        words = ["".join(source.choices(LETTERS, k=12)) for _ in range(LENGTH)]
        return self.transform(words), int(words[0] < "n")


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dataset = Sentences(args.steps * args.batch_size, SlowTransform())
    loader = DataLoader(dataset, batch_size=args.batch_size, num_workers=args.workers)
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for tokens, labels in loader:
        loss = nn.functional.cross_entropy(model(tokens.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
