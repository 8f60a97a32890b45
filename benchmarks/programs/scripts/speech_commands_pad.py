"""Keyword recognition on log-mel features of variable length; the collate function makes them equally long."""
import math
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    """Most clips are short; a few recordings run on."""

    def __init__(self, n=1600, mels=40, seed=0):
        g = torch.Generator().manual_seed(seed)
        lengths = (40 + 60 * torch.rand(n, generator=g)).long()
        lengths[::200] = 400
        self.features = [torch.randn(length, mels, generator=g) for length in lengths.tolist()]
        self.labels = torch.randint(0, 12, (n,), generator=g)
        self.max_len = max(len(f) for f in self.features)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], self.labels[i]


dataset = Clips()


def pad_collate(batch):
    features, labels = zip(*batch)
    lengths = torch.tensor([len(f) for f in features])
    out = torch.zeros(len(features), dataset.max_len, features[0].size(1))
    for i, f in enumerate(features):
        out[i, :len(f)] = f
    return out, lengths, torch.stack(labels)


class KeywordNet(nn.Module):
    def __init__(self, mels=40, width=96, classes=12):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(mels, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU())
        self.att = nn.Linear(width, 1)
        self.out = nn.Linear(width, classes)

    def forward(self, x, lengths):
        h = self.conv(x.transpose(1, 2)).transpose(1, 2)
        mask = torch.arange(h.size(1))[None] < lengths[:, None]
        w = self.att(h).squeeze(-1).masked_fill(~mask, -math.inf).softmax(-1)
        return self.out((w[..., None] * h).sum(1))


def main():
    torch.manual_seed(0)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, collate_fn=pad_collate, drop_last=True)
    model = KeywordNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    times, t0 = [], time.perf_counter()
    for features, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(features, lengths), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - t0)
        t0 = time.perf_counter()
    print(f"loss {loss.item():.3f}, median step {sorted(times)[len(times) // 2] * 1000:.2f} ms")


if __name__ == "__main__":
    main()
