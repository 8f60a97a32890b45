"""MAML on sine waves with torch.func: inner steps per task, the outer update by hand."""
import argparse
import time
from statistics import median

import torch
from torch import nn
from torch.func import functional_call, grad

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--tasks", type=int, default=16)
parser.add_argument("--shots", type=int, default=10)
args = parser.parse_args()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
params = {k: v.detach().clone() for k, v in net.named_parameters()}


def loss_fn(params, x, y):
    return ((functional_call(net, params, (x,)) - y) ** 2).mean()


def adapt(params, x, y, alpha=0.05):
    grads = grad(loss_fn)(params, x, y)
    return {k: v - alpha * grads[k] for k, v in params.items()}


def task_loss(params, xs, ys, xq, yq):
    return loss_fn(adapt(params, xs, ys), xq, yq)


def sample_tasks():
    amplitude, phase = torch.rand(args.tasks, 1, 1) * 4 + 0.1, torch.rand(args.tasks, 1, 1) * 3.14
    x = torch.rand(args.tasks, 2 * args.shots, 1) * 10 - 5
    y = amplitude * torch.sin(x - phase)
    return x[:, : args.shots], y[:, : args.shots], x[:, args.shots :], y[:, args.shots :]


def outer_loss(params, batch):
    losses = [task_loss(params, *(part[i] for part in batch)) for i in range(args.tasks)]
    return torch.stack(losses).mean()


times = []
for step in range(args.steps):
    t = time.perf_counter()
    batch = sample_tasks()
    grads = grad(outer_loss)(params, batch)
    params = {k: v - 0.01 * grads[k] for k, v in params.items()}
    times.append(time.perf_counter() - t)
    if step % 20 == 0:
        print(step, float(outer_loss(params, batch)))
print(f"median step {median(times[5:]) * 1e3:.2f} ms")
