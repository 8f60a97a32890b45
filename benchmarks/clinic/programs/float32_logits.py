"""Next-token training with a vocabulary that is far wider than the model."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, pieces):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, sparse=True)
        self.mix = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.pieces = pieces

    def loss_of(self, hidden, targets):
        logits = self.head(hidden).float()  # planted
        return F.cross_entropy(logits, targets, reduction="sum")  # planted

    def forward(self, tokens, targets):
        hidden, _ = self.mix(self.embed(tokens))
        hidden, targets = hidden.flatten(0, 1), targets.flatten()
        if self.pieces == 1:
            return self.loss_of(hidden, targets) / len(targets)
        pairs = zip(hidden.chunk(self.pieces), targets.chunk(self.pieces))
        return sum(checkpoint(self.loss_of, h, t, use_reentrant=False) for h, t in pairs) / len(targets)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    vocabulary = int(16000 * args.scale)
    model = LanguageModel(vocabulary, 48, 8 if args.fixed else 1).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = torch.randint(vocabulary, (16, 33), device=args.device)
    for step in range(args.steps):
        if step == 8:
            start = time.perf_counter_ns()
        loss = model(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")
    print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))


if __name__ == "__main__":
    main()
