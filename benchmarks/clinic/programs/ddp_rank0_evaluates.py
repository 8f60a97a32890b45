"""DDP whose first rank evaluates the model after each update, for a curve on the dashboard.

torchrun --nproc-per-node 2 ddp_rank0_evaluates.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Run:
    steps, batch, classes = 45, 256, 8

    def __init__(self, args):
        self.every = 15 if args.fixed else 1
        self.rank = dist.get_rank()
        self.device = f"cuda:{self.rank % torch.cuda.device_count()}" if args.device == "cuda" else "cpu"
        torch.manual_seed(self.rank)
        width = int(192 * args.scale)
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, self.classes)).to(self.device)
        self.ddp = DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01, fused=True)
        self.held_out = torch.randn(1024, 64, device=self.device), torch.randint(0, 8, (1024,), device=self.device)
        self.curve = []

    def update(self):
        x = torch.randn(self.batch, 64, device=self.device)
        y = torch.randint(0, self.classes, (self.batch,), device=self.device)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.ddp(x), y).backward()
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self):
        x, y = self.held_out
        scores = self.net.eval()(x)  # planted
        self.curve.append((scores.argmax(1) == y).float().mean())
        self.net.train()

    def train(self):
        for step in range(self.steps):
            if step == 8:
                start_ns = time.perf_counter_ns()
            self.update()
            if self.rank == 0 and step % self.every == 0:
                self.evaluate()  # planted
        if self.rank == 0:
            print("step_ns", (time.perf_counter_ns() - start_ns) // (self.steps - 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    Run(args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
