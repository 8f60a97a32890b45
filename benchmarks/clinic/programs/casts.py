"""bfloat16 activations that are cast to float32 and back around each operation, 'to be safe'."""
import argparse
import time

import torch
from torch import nn


class SafeBlock(nn.Module):
    def __init__(self, width, fixed):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.fixed = fixed

    def forward(self, x):
        if self.fixed:
            return torch.relu(torch.addcmul(self.shift, x, self.scale))
        y = x.float() * self.scale.float()  # planted
        y = y.to(torch.bfloat16)  # planted
        y = y.float() + self.shift.float()  # planted
        y = y.to(torch.bfloat16)  # planted
        return torch.relu(y.float()).to(torch.bfloat16)  # planted


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    cuda = args.device == "cuda"
    width, rows = max(8, int((4096 if cuda else 256) * args.scale)), 8192 if cuda else 512
    model = nn.Sequential(*[SafeBlock(width, args.fixed) for _ in range(6)]).to(args.device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    x = torch.randn(rows, width, device=args.device, dtype=torch.bfloat16)
    for step in range(50):
        if step == 8:
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - begin) // 42)


if __name__ == "__main__":
    main()
