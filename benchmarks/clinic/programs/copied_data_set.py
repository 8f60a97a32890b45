"""A table as a list of rows, read by two workers."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCHES = 100


class Table(Dataset):
    def __init__(self, count, as_array):
        self.rows = [[float(number), number + 0.5, number + 0.25] for number in range(count)]  # planted
        if as_array:
            self.rows = np.array(self.rows)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]  # planted


def collate(rows):
    return torch.tensor(np.array(rows), dtype=torch.float32)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    table = Table(int(1_200_000 * args.scale), args.fixed)
    loader = DataLoader(table, len(table) // BATCHES, shuffle=True, num_workers=2, collate_fn=collate)
    model = nn.Linear(3, 1).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        loss = model(batch.to(args.device) / len(table)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (BATCHES - 8))


if __name__ == "__main__":
    main()
