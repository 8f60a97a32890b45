"""ResNet-like model, profiled by the script itself with the schedule of the torch.profiler tutorial."""
import argparse
import time
from statistics import median

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(y)))


def report(prof):
    table = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=5)
    print(table.splitlines()[1][:60])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), Residual(32), Residual(32), nn.AdaptiveAvgPool2d(1),
                          nn.Flatten(), nn.Linear(32, 10))
    data = TensorDataset(torch.randn(16 * args.steps, 3, 48, 48), torch.randint(0, 10, (16 * args.steps,)))
    loader = DataLoader(data, batch_size=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    times = []
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
                 on_trace_ready=report, record_shapes=True) as prof:
        start = time.perf_counter()
        for x, y in loader:
            out = model(x)
            loss = loss_fn(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            prof.step()
            end = time.perf_counter()
            times.append(end - start)
            start = end
    print(f"median step {median(times[12:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
