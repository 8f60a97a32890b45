# few samples, many epochs
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device(args.device)
width = max(8, int(1024 * args.scale))
samples = TensorDataset(torch.randn(128, 256), torch.randint(0, 5, (128,)))
loader = DataLoader(samples, batch_size=32, shuffle=True, num_workers=2, persistent_workers=args.fixed)  # planted
model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train_epoch():
    running = 0.0
    for inputs, targets in loader:  # planted
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        running += loss.detach()
    return running / len(loader)


for epoch in range(args.epochs):
    if epoch == 2:
        begin = time.perf_counter_ns()
    mean_loss = train_epoch()
print(f"epoch {epoch}: {mean_loss:.4f}")
print("step_ns", (time.perf_counter_ns() - begin) // ((args.epochs - 2) * len(loader)))
