"""The Python API: diagnose one function, or record a loop whose steps perfdoctor could not find by itself.

python examples/diagnose_step.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import perfdoctor

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512)).to(device)
weights = list(model.parameters())


def train_step(batch: Tensor) -> float:
    """A step without an optimizer object, so that `perfdoctor run` cannot see where it ends."""
    loss = (model(batch) - batch).square().mean()
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= 0.1 * gradient
    return loss.item()  # waits for the GPU in every step


def main() -> None:
    """Diagnose the function, then record the loop."""
    batch = torch.randn(64, 512, device=device)
    report = perfdoctor.diagnose(train_step, batch, steps=30)
    report.print()

    with perfdoctor.profile() as session:
        for _ in range(30):
            with session.step():
                train_step(torch.randn(64, 512, device=device))
    print(f"recorded in {session.folder}: {len(session.report().findings)} findings")


if __name__ == "__main__":
    main()
