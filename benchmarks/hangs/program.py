"""A small data parallel program of three ranks over gloo that stops in one of many ways, or does not.

Each way is a function; the line with `# <way>` is where the rank at fault is or was. Ranks make 12 steps first.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

STEPS_BEFORE, STEPS_AFTER = 12, 6
FAULTY = 1
LOCK = threading.Lock()


class Samples(torch.utils.data.Dataset):
    """Samples of which one, of the faulty rank, blocks the worker that reads it."""

    def __init__(self, way: str, rank: int) -> None:
        self.way, self.rank = way, rank

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.way == "loader-worker" and self.rank == FAULTY and index >= 4 * STEPS_BEFORE:
            blocked = threading.Lock()
            blocked.acquire()
            blocked.acquire()  # loader-worker
        return torch.randn(8)


def extra_collective(way: str, rank: int) -> None:
    """Ways that lie in the collectives."""
    ones = torch.ones(4)
    if way == "branch" and rank != FAULTY:
        dist.all_reduce(ones)
    elif way == "branch":
        dist.monitored_barrier()  # branch
    elif way == "order" and rank != FAULTY:
        dist.all_reduce(ones)
        dist.broadcast(ones, 0)
    elif way == "order":
        dist.broadcast(ones, 0)  # order
        dist.all_reduce(ones)
    elif way == "size":
        dist.all_reduce(torch.ones(4) if rank != FAULTY else torch.ones(1))  # size
    elif way == "dtype":
        # With types of the same size but for this gloo ends the process in place of waiting.
        dist.all_reduce(ones if rank != FAULTY else torch.ones(1, dtype=torch.int32))  # dtype


def end(way: str) -> None:
    """Ways in which the faulty rank ends."""
    if way == "killed":
        # A helper that was forked keeps the connections open, so that the others wait in place of failing.
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=False).start()
        os.kill(os.getpid(), signal.SIGKILL)  # killed
    elif way == "exception":
        threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
        raise ValueError("a bad sample")  # exception
    elif way == "early-end":
        if os.fork() == 0:  # as above
            time.sleep(600)
        sys.exit(0)  # early-end


def stop(way: str, folder: str) -> None:
    """Ways in which the faulty rank lives and does not come to the next collective."""
    if way == "sleep":
        time.sleep(600)  # sleep
    elif way == "busy":
        until = time.monotonic() + 600
        while time.monotonic() < until:
            torch.randn(64, 64).sum()  # busy
    elif way == "lock":
        LOCK.acquire()
        LOCK.acquire()  # lock
    elif way == "fifo":
        path = os.path.join(folder, "samples.fifo")
        os.mkfifo(path)
        keep_open = os.open(path, os.O_RDWR)
        with open(path, "rb", buffering=0) as file:
            file.read(1)  # fifo
        os.close(keep_open)
    elif way == "gil":
        ctypes.PyDLL(None).sleep(600)  # gil
    elif way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)  # stopped


def pause(way: str, rank: int, step: int) -> None:
    """What healthy programs do while others wait, or all do."""
    if step != STEPS_BEFORE:
        return
    if way == "evaluation":
        until = time.monotonic() + 8
        while time.monotonic() < until:
            torch.randn(128, 128) @ torch.randn(128, 128)
    elif way == "checkpoint" and rank == 0:
        time.sleep(3)
    elif way == "evaluation-without-core":
        for _ in range(80):
            time.sleep(0.1)


def main(way: str, folder: str) -> None:
    """Train, and stop in the way."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    workers = 1 if way in ("loader-worker", "workers") else 0
    loader = torch.utils.data.DataLoader(Samples(way, rank), batch_size=4, num_workers=workers)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(loader):
        pause(way, rank, step)
        if step == STEPS_BEFORE:
            extra_collective(way, rank)
            if rank == FAULTY:
                end(way)
                stop(way, folder)
        if way == "slow-steps":
            time.sleep(1.5 if rank == FAULTY else 0.0)
        optimizer.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # waits
        optimizer.step()
        if step == STEPS_BEFORE + STEPS_AFTER:
            break
    if way == "long-end":
        until = time.monotonic() + 8
        while time.monotonic() < until:
            torch.randn(128, 128) @ torch.randn(128, 128)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
