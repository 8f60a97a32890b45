"""A mean teacher: the mean of its answers to four noisy copies is the target of each step."""
import argparse
import copy
import time

import torch
from torch import nn

arg_parser = argparse.ArgumentParser()
arg_parser.add_argument("--device", default="cpu")
arg_parser.add_argument("--scale", type=float, default=1.0)
arg_parser.add_argument("--fixed", action="store_true")
flags = arg_parser.parse_args()
torch.manual_seed(0)

student = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1024)).to(flags.device)
teacher = copy.deepcopy(student).requires_grad_(False)
sgd = torch.optim.SGD(student.parameters(), lr=0.05)
samples = torch.randn(int(4096 * flags.scale), 64, device=flags.device)

step = 0
while step < 22:
    if step == 8:
        start = time.perf_counter_ns()
    with torch.no_grad():
        target = torch.stack([teacher(samples + 0.1 * torch.randn_like(samples)) for _ in range(4)]).mean(0)  # planted
    prediction = student(samples)  # planted
    loss = nn.functional.mse_loss(prediction, target)
    loss.backward()
    sgd.step()
    sgd.zero_grad()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters()):
            slow.lerp_(fast, 0.01)
    if flags.fixed:
        del prediction, target
    step += 1
print("step_ns", (time.perf_counter_ns() - start) // 14)
print("loss", loss.item())
