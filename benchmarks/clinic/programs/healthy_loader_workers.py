"""Spectrograms from a slow share: two workers keep up with the training."""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset):
    def __init__(self, count):
        self.clips = torch.randn(32, 1, 64, 48)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.0002)  # the share answers
        return self.clips[index % 32], index % 4


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--fixed", action="store_true", help="nothing is wrong here")
    args = parser.parse_args()
    torch.manual_seed(0)
    width = max(8, int(24 * args.scale))
    loader = DataLoader(Clips(args.steps * 16), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    net = nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, 4),
    ).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (clips, labels) in enumerate(loader):
        if step == 8:
            start = time.perf_counter_ns()
        loss = nn.functional.cross_entropy(net(clips.to(args.device)), labels.to(args.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start) // (args.steps - 8))


if __name__ == "__main__":
    main()
