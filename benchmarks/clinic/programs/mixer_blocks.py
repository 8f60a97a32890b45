"""An MLP mixer whose ten blocks keep what they make; configuration by a dictionary, training by a closure."""
import argparse
import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

CONFIG = {"tokens": 64, "channels": 96, "hidden": 256, "blocks": 10, "classes": 20, "batch": 24}


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels, hidden, **_):
        super().__init__()
        self.norm_tokens, self.norm_channels = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.mix_tokens = nn.Sequential(nn.Linear(tokens, hidden), nn.GELU(), nn.Linear(hidden, tokens))
        self.mix_channels = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels))

    def forward(self, x):
        x = x + self.mix_tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)  # planted
        return x + self.mix_channels(self.norm_channels(x))  # planted


class Mixer(nn.Module):
    def __init__(self, config, recompute):
        super().__init__()
        self.recompute = recompute
        self.blocks = nn.ModuleList([MixerBlock(**config) for _ in range(config["blocks"])])
        self.head = nn.Linear(config["channels"], config["classes"])

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)  # planted
        return self.head(x.mean(1))


def make_step(model, optimizer, x, y):
    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main():
    cli = argparse.ArgumentParser()
    cli.add_argument("--device", default="cpu")
    cli.add_argument("--scale", type=float, default=1.0)
    cli.add_argument("--fixed", action="store_true")
    cli = cli.parse_args()
    torch.manual_seed(0)
    model = Mixer(CONFIG, cli.fixed).to(cli.device)
    batch = int(CONFIG["batch"] * cli.scale)
    x = torch.randn(batch, CONFIG["tokens"], CONFIG["channels"], device=cli.device)
    y = torch.randint(CONFIG["classes"], (batch,), device=cli.device)
    step = make_step(model, torch.optim.AdamW(model.parameters(), lr=1e-3), x, y)
    for _ in range(8):
        step()
    start = time.perf_counter_ns()
    losses = [step() for _ in range(16)]
    print("step_ns", (time.perf_counter_ns() - start) // 16)
    print("loss", losses[-1].item())


main()
