"""A critic looks at images at several scales; its losses of all of them are added up before they are differentiated."""
import argparse
import contextlib
import time

import torch
from torch import nn


class Critic(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=1, padding=2),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 1, 3, padding=1),
        )

    def forward(self, images):
        return self.features(images).mean((1, 2, 3))


class Session(contextlib.AbstractContextManager):
    def __enter__(self):
        self.began = time.perf_counter_ns()
        return self

    def __exit__(self, *_):
        print("step_ns", (time.perf_counter_ns() - self.began) // 14)


def hinge(scores, sign):
    return torch.nn.functional.softplus(-sign * scores).mean()


def update(critic, optimizer, pairs, each):
    optimizer.zero_grad()
    losses = []
    for real, fake in pairs:
        for images, sign in ((real, 1), (fake, -1)):
            loss = hinge(critic(images), sign)  # planted
            if each:
                loss.backward()
            losses.append(loss.detach() if each else loss)
    total = torch.stack(losses).sum()
    if not each:
        total.backward()  # planted
    optimizer.step()
    return total.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    critic = Critic(16).to(args.device)
    optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.9))
    images = int(12 * args.scale)
    pairs = [tuple(torch.randn(images, 3, 64, 64, device=args.device) for _ in range(2)) for _ in range(3)]
    for _ in range(8):
        update(critic, optimizer, pairs, args.fixed)
    with Session():
        for _ in range(14):
            total = update(critic, optimizer, pairs, args.fixed)
    print("loss", total)


main()
