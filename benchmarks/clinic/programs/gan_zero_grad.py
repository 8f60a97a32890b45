"""A GAN on small images: two networks, two optimizers, as in the tutorial of years ago."""

import argparse
import time

import torch
from torch import nn

STEPS = 50


def make_network(sizes, last):
    layers = []
    for before, after in zip(sizes, sizes[1:]):
        layers += [nn.Linear(before, after), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1], last)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    width = int(512 * args.scale)
    generator = make_network([64, width, width, width, width, width, 784], nn.Tanh()).to(args.device)
    critic = make_network([784, width, width, width, width, width, 1], nn.Identity()).to(args.device)
    generator_optimizer = torch.optim.SGD(generator.parameters(), lr=1e-3, fused=True)
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=1e-3, fused=True)
    criterion = nn.BCEWithLogitsLoss()
    batch = 8
    images = torch.rand(batch * STEPS, 784, device=args.device) * 2 - 1
    ones, zeros = torch.ones(batch, 1, device=args.device), torch.zeros(batch, 1, device=args.device)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        real = images[step * batch : (step + 1) * batch]
        fake = generator(torch.randn(batch, 64, device=args.device))

        critic_optimizer.zero_grad(set_to_none=args.fixed)  # planted
        critic_loss = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
        critic_loss.backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad(set_to_none=args.fixed)  # planted
        critic.requires_grad_(False)
        generator_loss = criterion(critic(fake), ones)
        generator_loss.backward()
        generator_optimizer.step()
        critic.requires_grad_(True)
    print("losses", critic_loss.item(), generator_loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
