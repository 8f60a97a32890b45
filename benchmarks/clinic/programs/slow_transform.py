import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Patches(Dataset):
    def __init__(self, length, once):
        rng = random.Random(1)
        self.patches = [bytes(rng.randrange(256) for _ in range(32 * 32)) for _ in range(64)]
        self.ready = [normalize_pixels(patch) for patch in self.patches] if once else None
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.ready is not None:
            return self.ready[index % 64], index % 2
        return normalize_pixels(self.patches[index % 64]), index % 2


def normalize_pixels(patch):
    """Stretch the contrast of a patch and clip it."""
    low, high = min(patch), max(patch)
    out = []
    for value in patch:
        v = (value - low) / (high - low + 1e-6)
        v = max(0.02, min(0.98, v))
        out.append((v - 0.5) / 0.25)
    return torch.tensor(out).view(1, 32, 32)  # planted


class Trainer:
    def __init__(self, model, loader, device):
        self.model = model.to(device)
        self.loader = loader
        self.device = device
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        self.times = []

    def training_step(self, batch):
        x, y = (t.to(self.device) for t in batch)
        return self.criterion(self.model(x), y)

    def fit(self):
        self.model.train()
        last = time.perf_counter_ns()
        for batch in self.loader:
            loss = self.training_step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            now = time.perf_counter_ns()
            self.times.append(now - last)
            last = now
        print("final loss", loss.item())


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", default="cpu")
    cli.add_argument("--scale", type=float, default=1.0)
    cli.add_argument("--steps", type=int, default=50)
    cli.add_argument("--fixed", action="store_true")
    args = cli.parse_args()
    torch.manual_seed(0)
    width = max(8, int(24 * args.scale))
    loader = DataLoader(Patches(args.steps * 32, once=args.fixed), batch_size=32, shuffle=True)  # planted
    model = nn.Sequential(
        nn.Conv2d(1, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(width * 196, 2),
    )
    trainer = Trainer(model, loader, args.device)
    trainer.fit()
    print("step_ns", sum(trainer.times[8:]) // len(trainer.times[8:]))
