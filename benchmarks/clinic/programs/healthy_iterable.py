"""A stream of records read by one worker, which keeps up with the training."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

STEPS, BATCH = 48, 128


class Records(IterableDataset):
    """Batches as they come from a record file: already tensors, one after the other."""

    def __init__(self, count, width):
        self.count, self.width = count, width

    def __iter__(self):
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, self.count, every):
            generator = torch.Generator().manual_seed(number)
            yield torch.randn(BATCH, self.width, generator=generator), torch.full((BATCH,), number % 10)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true", help="changes nothing: nothing is wrong")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    width = int(512 * args.scale)
    model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 10)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    loader = DataLoader(Records(STEPS, width), batch_size=None, num_workers=1, pin_memory=args.device == "cuda")

    for step, (x, y) in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        x, y = x.to(args.device, non_blocking=True), y.to(args.device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
