"""CIFAR-like training of a small ResNet in channels_last, data in memory, augmentation on the whole batch."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Identity()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, widths=(32, 64, 128), blocks=2, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        layers, inp = [], widths[0]
        for i, w in enumerate(widths):
            for j in range(blocks):
                layers.append(BasicBlock(inp, w, 2 if i and not j else 1))
                inp = w
        self.layers = nn.Sequential(*layers)
        self.linear = nn.Linear(inp, num_classes)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)), inplace=True)
        x = self.layers(x)
        return self.linear(x.mean((2, 3)))


class BatchLoader:
    """Shuffles, pads, crops and flips whole batches of tensors in memory."""

    def __init__(self, images, labels, batch_size):
        self.images = F.pad(images, (4, 4, 4, 4), mode="reflect").to(memory_format=torch.channels_last)
        self.labels, self.batch_size = labels, batch_size

    def __len__(self):
        return len(self.labels) // self.batch_size

    def __iter__(self):
        order = torch.randperm(len(self.labels))
        for i in range(len(self)):
            idx = order[i * self.batch_size:(i + 1) * self.batch_size]
            y0, x0 = torch.randint(0, 9, (2,)).tolist()
            x = self.images[idx, :, y0:y0 + 32, x0:x0 + 32]
            if torch.rand(()) < 0.5:
                x = x.flip(3)
            yield x.contiguous(memory_format=torch.channels_last), self.labels[idx]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=32)
    p.add_argument("--lr", type=float, default=0.1)
    args = p.parse_args()

    torch.manual_seed(0)
    loader = BatchLoader(torch.randn(768, 3, 32, 32), torch.randint(0, 10, (768,)), args.batch_size)
    net = ResNet().to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    seconds = []
    for epoch in range(args.epochs):
        net.train()
        train_loss = torch.zeros(())
        for inputs, targets in loader:
            start = time.perf_counter()
            outputs = net(inputs)
            loss = criterion(outputs, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
            train_loss += loss.detach()
            seconds.append(time.perf_counter() - start)
        print(f"Epoch {epoch}: loss {train_loss.item() / len(loader):.3f}")
    print(f"median step {torch.tensor(seconds[5:]).median().item() * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
