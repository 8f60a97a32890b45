"""Small CNN on pictures that lie on a network disk."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--steps", type=int, default=56)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--scale", type=float, default=1.0)
parser.add_argument("--fixed", action="store_true")
args = parser.parse_args()


class Pictures(Dataset):
    """One picture is one file on the share; a read takes about half a millisecond."""

    def __init__(self, count):
        self.pixels = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        time.sleep(0.0004)  # the share answers
        return self.pixels[i % 64].float().div(255), i % 10


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2)
        self.fc = nn.Linear(2 * width * 7 * 7, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.flatten(1))


torch.manual_seed(0)
train_data = Pictures(args.steps * args.batch_size)
workers = {"num_workers": 2, "persistent_workers": True} if args.fixed else {}
train_loader = DataLoader(train_data, batch_size=args.batch_size, shuffle=True, **workers)  # planted

net = Net(max(8, int(64 * args.scale))).to(args.device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

net.train()
for step, (images, labels) in enumerate(train_loader):
    if step == 8:
        start = time.perf_counter_ns()
    images, labels = images.to(args.device), labels.to(args.device)
    optimizer.zero_grad()
    loss = F.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: loss {loss.item():.3f}")
if args.device == "cuda":
    torch.cuda.synchronize()
print("step_ns", (time.perf_counter_ns() - start) // (step - 7))
