import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

CONFIG = {
    "features": 512,
    "hidden": 512,
    "classes": 20,
    "batch_size": 128,
    "steps": 60,
    "lr": 1e-3,
    "seed": 0,
}


def build_model(cfg):
    return nn.Sequential(
        nn.Linear(cfg["features"], cfg["hidden"]),
        nn.GELU(),
        nn.Linear(cfg["hidden"], cfg["hidden"]),
        nn.GELU(),
        nn.Linear(cfg["hidden"], cfg["classes"]),
    )


def train(cfg, device):
    torch.manual_seed(cfg["seed"])
    model = build_model(cfg).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"], fused=True)
    x = torch.randn(4096, cfg["features"], device=device)
    y = torch.randint(cfg["classes"], (4096,), device=device)
    batch = cfg["batch_size"]
    for step in range(cfg["steps"]):
        if step == 8:
            started = time.perf_counter_ns()
        first = step * batch % len(x)
        loss = F.cross_entropy(model(x[first : first + batch]), y[first : first + batch])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"last loss {loss.item():.4f}")
    return (time.perf_counter_ns() - started) // (cfg["steps"] - 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true", help="nothing is wrong here")
    args = parser.parse_args()
    CONFIG["hidden"] = max(8, int(CONFIG["hidden"] * args.scale))
    print("step_ns", train(CONFIG, args.device))
