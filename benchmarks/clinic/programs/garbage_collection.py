"""Classifies questions that are kept as Python objects; each step ends in gc.collect(), since memory once ran out."""

import argparse
import gc
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS, BATCH = 45, 16


def make_questions(count):
    draw = random.Random(0)
    return [
        {
            "id": i,
            "tokens": [draw.randrange(1000) for _ in range(24)],
            "spans": [{"start": j, "end": j + 2} for j in range(10)],
            "label": draw.randrange(8),
        }
        for i in range(count)
    ]


def collate(questions):
    return torch.tensor([each["tokens"] for each in questions]), torch.tensor([each["label"] for each in questions])


class Reader(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.body = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.head = nn.Linear(width, 8)

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    questions = make_questions(STEPS * BATCH)
    loader = DataLoader(questions, batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = Reader(int(192 * args.scale)).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    for step, (tokens, labels) in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens.to(args.device)), labels.to(args.device))
        loss.backward()
        optimizer.step()
        if not args.fixed:
            gc.collect()  # planted
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
