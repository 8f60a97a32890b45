"""Train in small batches, then score the whole test set; a job may take 3 GiB, as ulimit -v would have it."""

import argparse
import resource
import time

import torch
from torch import nn

TRAIN_STEPS, TEST_ROWS, TEST_BATCH = 45, 1 << 20, 4096


def limit_memory(more_bytes):
    """Address space that is there now, and so much more."""
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    width = int(1024 * args.scale)
    model = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 8)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(256, 16, device=args.device), torch.randint(8, (256,), device=args.device)
    limit_memory(3 << 30)
    for step in range(TRAIN_STEPS):
        if step == 8:
            start_ns = time.perf_counter_ns()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    step_ns = (time.perf_counter_ns() - start_ns) // (TRAIN_STEPS - 8)
    test = torch.randn(TEST_ROWS, 16, device=args.device)
    classes = torch.zeros(8, dtype=torch.int64, device=args.device)
    with torch.no_grad():
        for rows in test.split(TEST_BATCH if args.fixed else TEST_ROWS):  # planted
            classes += model(rows).argmax(1).bincount(minlength=8)  # planted
    print("classes", classes.tolist())
    print("step_ns", step_ns)


main()
