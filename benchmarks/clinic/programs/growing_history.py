"""Online learning on a stream: each step attends to all that was ever seen, so the sequence grows."""

import argparse
import time

import torch
from torch import nn

STEPS, NEW = 60, 24


class Forecaster(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inputs = nn.Linear(8, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 8)

    def forward(self, history):
        return self.head(self.layer(self.inputs(history))[:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    model = Forecaster(int(128 * args.scale)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    history = torch.randn(1, 384, 8, device=args.device)

    for step in range(STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        arrived = torch.randn(1, NEW, 8, device=args.device)
        loss = nn.functional.mse_loss(model(history), arrived[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history = torch.cat([history, arrived], 1)  # planted
        if args.fixed:
            history = history[:, -384:]
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
