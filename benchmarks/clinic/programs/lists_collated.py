"""Forecast a sensor's next value from a window of lists, as json.load gives them."""
import argparse
import random
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


@dataclass
class Config:
    device: str = "cpu"
    scale: float = 1.0
    steps: int = 60
    batch_size: int = 32
    window: int = 512
    fixed: bool = False


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cpu")
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--fixed", action="store_true")
    return Config(**vars(p.parse_args()))


def windows(cfg):
    rng = random.Random(3)
    series = [rng.gauss(0, 1) for _ in range(4096)]
    samples = []
    for start in range(0, 3584, 4):
        values = series[start : start + cfg.window]
        samples.append({"values": torch.tensor(values) if cfg.fixed else values, "next": series[start + cfg.window]})
    return samples


def main(cfg):
    torch.manual_seed(0)
    samples = windows(cfg)
    loader = DataLoader(samples, batch_size=cfg.batch_size, shuffle=True, drop_last=True)  # planted
    hidden = max(8, int(1024 * cfg.scale))
    layers = [nn.Linear(cfg.window, hidden), nn.GELU()]
    for _ in range(3):
        layers += [nn.Linear(hidden, hidden), nn.GELU()]
    model = nn.Sequential(*layers, nn.Linear(hidden, 1))
    model.to(cfg.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    step, total = 0, 0
    while step < cfg.steps:
        tick = time.perf_counter_ns()
        for batch in loader:
            values = batch["values"]
            if isinstance(values, list):
                values = torch.stack(values, 1)  # planted
            x = values.float().to(cfg.device)
            y = batch["next"].float().to(cfg.device)
            loss = nn.functional.mse_loss(model(x)[:, 0], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tock = time.perf_counter_ns()
            if step >= 8:
                total += tock - tick
            tick = tock
            step += 1
            if step == cfg.steps:
                break
    print(f"mse {loss.item():.3f}")
    print("step_ns", total // (cfg.steps - 8))


if __name__ == "__main__":
    main(parse())
