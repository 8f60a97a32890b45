# A policy network whose advantages are normalised row by row
import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn


def scale_rows(x, gain, shift):
    rows = []
    for i in range(x.shape[0]):
        rows.append((x[i] * gain[i] + shift[i]).clamp(-3.0, 3.0))  # planted
    return torch.stack(rows)


def scale_matrix(x, gain, shift):
    return (x * gain + shift).clamp(-3.0, 3.0)


def update(policy, optimizer, scale, obs, gain, shift, actions):
    logits = policy(scale(obs, gain, shift))
    loss = F.cross_entropy(logits, actions)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def learn(args):
    torch.manual_seed(0)
    rows, features = max(8, int(160 * args.scale)), 128
    policy = nn.Sequential(nn.Linear(features, 128), nn.Tanh(), nn.Linear(128, 6)).to(args.device)
    optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-4)
    obs = torch.randn(rows, features, device=args.device)
    gain = torch.rand(rows, 1, device=args.device)
    shift = torch.randn(rows, 1, device=args.device)
    actions = torch.randint(6, (rows,), device=args.device)
    scale = scale_matrix if args.fixed else scale_rows
    for i in range(60):
        if i == 8:
            t0 = time.perf_counter_ns()
        loss = update(policy, optimizer, scale, obs, gain, shift, actions)  # planted
    print(loss.item())
    return (time.perf_counter_ns() - t0) // 52


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--device", default="cpu")
    p.add_argument("--scale", type=float, default=1.0)
    p.add_argument("--fixed", action="store_true")
    print("step_ns", learn(p.parse_args()))
