"""A VGG-like classifier of pets, trained from an own data set of uint8 images."""
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

WEIGHT_DECAY = 5e-4
EPOCHS = 4


class PetsDataset(Dataset):
    """Images and breeds, with horizontal flips."""

    def __init__(self, n=640, size=32, breeds=12, train=True, seed=3):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, breeds, n)
        tint = rng.integers(60, 200, (breeds, 3, 1, 1))
        noise = rng.integers(-50, 50, (n, 3, size, size))
        self.images = np.clip(tint[self.labels] + noise, 0, 255).astype("uint8")
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = torch.from_numpy(self.images[i])
        if self.train and torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, int(self.labels[i])


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True), nn.MaxPool2d(2))


class SmallVGG(nn.Module):
    def __init__(self, breeds=12):
        super().__init__()
        self.features = nn.Sequential(conv_block(3, 24), conv_block(24, 48), conv_block(48, 96))
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(96 * 4 * 4, 1536), nn.ReLU(inplace=True), nn.Dropout(0.4),
            nn.Linear(1536, 1024), nn.ReLU(inplace=True), nn.Dropout(0.4),
            nn.Linear(1024, breeds),
        )

    def forward(self, x):
        return self.classifier(self.features(x))


def train_one_epoch(model, loader, criterion, optimizer, times):
    model.train()
    seen = correct = 0
    tick = time.perf_counter()
    for images, targets in loader:
        images = images.float().div_(127.5).sub_(1)
        outputs = model(images)
        loss = criterion(outputs, targets)
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        loss = loss + 0.5 * WEIGHT_DECAY * l2

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += len(targets)
        correct += (outputs.argmax(1) == targets).sum().item()
        times.append(time.perf_counter() - tick)
        tick = time.perf_counter()
    return correct / seen


def main():
    torch.manual_seed(1)
    loader = DataLoader(PetsDataset(), batch_size=16, shuffle=True, drop_last=True)
    model = SmallVGG()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    times, cpu = [], time.process_time()
    for epoch in range(EPOCHS):
        acc = train_one_epoch(model, loader, criterion, optimizer, times)
        scheduler.step()
        print(f"epoch {epoch}: train acc {acc:.3f}")
    print(f"median step {np.median(times) * 1e3:.2f} ms, cpu {time.process_time() - cpu:.2f} s")


if __name__ == "__main__":
    main()
