"""VGG-like net with batch norm; the convolutions kept their biases."""
import argparse
import time

import torch
from torch import nn

MODEL = [32, 32, "M", 64, 64, "M"]


def make_layers(cfg, scale, bias):
    layers, channels = [], 3
    for item in cfg:
        if item == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        out = max(8, int(item * scale))
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=bias), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]  # planted
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def train(model, images, labels, steps=50):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for step in range(steps):
        if step == 8:
            if images.is_cuda:
                torch.cuda.synchronize()
            start = time.perf_counter_ns()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    return (time.perf_counter_ns() - start) // (steps - 8)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    batch, size = (128, 64) if args.device == "cuda" else (4, 16)
    model = make_layers(MODEL, args.scale, bias=not args.fixed).to(args.device)
    images = torch.randn(batch, 3, size, size, device=args.device)
    labels = torch.randint(10, (batch,), device=args.device)
    print("step_ns", train(model, images, labels))
