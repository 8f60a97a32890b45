"""Character language model with LSTM cells, unrolled by hand as in many tutorials."""
import argparse
import time
from statistics import median

import torch
from torch import nn

TEXT = ("the quick brown fox jumps over the lazy dog while the five boxing wizards jump quickly and "
        "a journey of a thousand miles begins with a single step they say. ") * 400
CHARS = sorted(set(TEXT))
INDEX = {c: i for i, c in enumerate(CHARS)}


class CharLSTM(nn.Module):
    def __init__(self, vocab, hidden, layers):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(vocab, hidden)
        self.cells = nn.ModuleList([nn.LSTMCell(hidden, hidden) for _ in range(layers)])
        self.head = nn.Linear(hidden, vocab)

    def forward(self, tokens):
        batch, length = tokens.shape
        state = [(torch.zeros(batch, self.hidden), torch.zeros(batch, self.hidden)) for _ in self.cells]
        logits = []
        for t in range(length):
            x = self.embed(tokens[:, t])
            for k, cell in enumerate(self.cells):
                h, c = cell(x, state[k])
                state[k] = (h, c)
                x = h
            logits.append(self.head(x))
        return torch.stack(logits, dim=1)


def batches(data, batch, length, n):
    for _ in range(n):
        starts = torch.randint(0, len(data) - length - 1, (batch,))
        rows = torch.stack([data[s : s + length + 1] for s in starts])
        yield rows[:, :-1], rows[:, 1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--seq-len", type=int, default=80)
    args = parser.parse_args()
    torch.manual_seed(1)

    data = torch.tensor([INDEX[c] for c in TEXT])
    model = CharLSTM(len(CHARS), args.hidden, layers=2)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    durations = []
    begin = time.perf_counter()
    for step, (x, y) in enumerate(batches(data, 16, args.seq_len, args.steps)):
        logits = model(x)
        loss = criterion(logits.reshape(-1, len(CHARS)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        end = time.perf_counter()
        durations.append(end - begin)
        begin = end
        if step % 20 == 0:
            print(f"{step:4d}  {loss.item():.4f}")
    print(f"median step {median(durations[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
