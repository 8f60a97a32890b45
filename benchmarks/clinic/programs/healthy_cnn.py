"""CNN on images in memory, trained by a class."""
import argparse
import time

import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


class ImageTrainer:
    def __init__(self, device, scale):
        torch.manual_seed(0)
        channels = max(8, int(32 * scale))
        self.model = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1, bias=False),
            Residual(channels),
            nn.MaxPool2d(2),
            Residual(channels),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 10),
        ).to(device)
        self.images = torch.randn(256, 3, 32, 32, device=device)
        self.labels = torch.randint(10, (256,), device=device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, fused=True)
        self.loss_fn = nn.CrossEntropyLoss()

    def train_batch(self, indices):
        loss = self.loss_fn(self.model(self.images[indices]), self.labels[indices])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, steps, batch_size=16):
        for step in range(steps):
            if step == 8:
                begin = time.perf_counter_ns()
            first = step * batch_size % len(self.images)
            loss = self.train_batch(slice(first, first + batch_size))
        print("loss", loss.item())
        return (time.perf_counter_ns() - begin) // (steps - 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true", help="nothing is wrong here")
    args = parser.parse_args()
    print("step_ns", ImageTrainer(args.device, args.scale).train(45))
