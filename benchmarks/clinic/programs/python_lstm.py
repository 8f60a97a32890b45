"""Next character with an LSTM; the cell is stepped in Python."""
import argparse
import time

import torch
from torch import nn


class CharModel(nn.Module):
    def __init__(self, vocab=64, hidden=64, fixed=False):
        super().__init__()
        self.emb = nn.Embedding(vocab, hidden)
        self.fixed = fixed
        if fixed:
            self.rnn = nn.LSTM(hidden, hidden, batch_first=True)
        else:
            self.cell = nn.LSTMCell(hidden, hidden)
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        x = self.emb(tokens)
        if self.fixed:
            out, _ = self.rnn(x)
            return self.head(out)
        h = x.new_zeros(x.shape[0], x.shape[2])
        c = torch.zeros_like(h)
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))  # planted
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


class Trainer:
    """Keeps model, optimizer and clock."""

    def __init__(self, args):
        torch.manual_seed(0)
        self.device = args.device
        self.model = CharModel(hidden=max(8, int(64 * args.scale)), fixed=args.fixed).to(args.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3, fused=True)
        self.text = torch.randint(64, (20_000,))

    def get_batch(self, batch=8, length=64):
        starts = torch.randint(len(self.text) - length - 1, (batch,))
        chunk = torch.stack([self.text[s : s + length + 1] for s in starts]).to(self.device)
        return chunk[:, :-1], chunk[:, 1:]

    def step(self):
        x, y = self.get_batch()
        logits = self.model(x)  # planted
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, steps):
        for i in range(steps):
            if i == 8:
                start = time.perf_counter_ns()
            loss = self.step()
        print(f"loss {loss.item():.3f}")
        return (time.perf_counter_ns() - start) // (steps - 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    print("step_ns", Trainer(parser.parse_args()).run(50))
