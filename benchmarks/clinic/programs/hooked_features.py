"""Features of one layer are collected by a forward hook, for principal components when the training is over."""
import argparse
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class FeatureTap:
    keep_all: bool
    rows: list[Tensor] = field(default_factory=list)

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.rows.append(output.detach() if self.keep_all else output.detach()[::64].clone())  # planted

    def components(self) -> Tensor:
        rows = torch.cat(self.rows)
        return torch.linalg.eigvalsh(rows.T @ rows / len(rows))


def build(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)).to(device)


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = build(options.device)
    tap = FeatureTap(keep_all=not options.fixed)
    model[2].register_forward_hook(tap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = int(4096 * options.scale)
    x = torch.randn(rows, 48, device=options.device)
    y = torch.randint(6, (rows,), device=options.device)
    for step in range(48):
        if step == 8:
            start = time.perf_counter_ns()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print("step_ns", (time.perf_counter_ns() - start) // 40)
    print("largest component", tap.components()[-1].item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    train(parser.parse_args())
