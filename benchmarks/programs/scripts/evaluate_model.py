"""Evaluate a classifier on a test set: accuracy, confusion matrix, and per-class recall."""
import argparse
import time
from statistics import median

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

NUM_CLASSES = 20


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 64, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES),
    )


def evaluate(model, loader):
    model.eval()
    confusion = torch.zeros(NUM_CLASSES, NUM_CLASSES, dtype=torch.long)
    correct = total = 0
    times, last = [], time.perf_counter()
    with torch.no_grad():
        for images, targets in loader:
            outputs = model(images)
            _, predicted = torch.max(outputs, 1)
            total += targets.size(0)
            correct += (predicted == targets).sum().item()
            for t, p in zip(targets.view(-1), predicted.view(-1)):
                confusion[t.long(), p.long()] += 1
            now = time.perf_counter()
            times.append(now - last)
            last = now
    recall = confusion.diag() / confusion.sum(1).clamp(min=1)
    return correct / total, recall, times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(args.batch_size * 4, 3, 32, 32).repeat(args.steps // 4, 1, 1, 1)
    labels = torch.randint(0, NUM_CLASSES, (len(images),))
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size)
    accuracy, recall, times = evaluate(build_model(), loader)
    print(f"accuracy {accuracy:.3f}, worst recall {recall.min():.3f}")
    print(f"median step {median(times[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
