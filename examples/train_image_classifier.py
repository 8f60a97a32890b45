"""Train a small convolutional network on synthetic images, on a GPU if there is one and on the CPU otherwise.

An ordinary training script with an ordinary flaw: images are read from a slow disk (one of a network, which answers in
1 ms) and decoded in the training process, so the model waits for data in every step. `--workers 2` moves that work to
other processes, which wait at the same time.

    python examples/train_image_classifier.py
    perfdoctor run examples/train_image_classifier.py
"""

from __future__ import annotations

import argparse
import math
import time
import zlib

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 10
STORED = 32  # images on "disk"
SIDE = 72  # of a stored image
SIZE = 64  # of what the model sees
DISK_S = 0.001  # until a disk of a network answers


def paint(label: int, generator: torch.Generator) -> Tensor:
    """A picture of a class: stripes of its direction and width, in a random colour, with noise."""
    row, column = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    angle, frequency = math.pi * label / CLASSES, 6 + 2 * (label % 3)
    stripes = torch.sin(2 * math.pi * frequency * (row * math.sin(angle) + column * math.cos(angle)))
    colour = 0.3 + 0.7 * torch.rand(3, 1, 1, generator=generator)
    noise = 0.15 * torch.randn(3, SIDE, SIDE, generator=generator)
    return ((colour * stripes + noise) * 60 + 128).clamp(0, 255).to(torch.uint8)


class SyntheticImages(Dataset):
    """Compressed images on a slow disk, as PNG files are: every access reads, decodes and augments one."""

    def __init__(self, length: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.length = length
        self.labels = torch.randint(CLASSES, (STORED,), generator=generator)
        self.files = [zlib.compress(bytes(paint(int(each), generator).flatten().tolist()), 1) for each in self.labels]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        index %= STORED
        return self.augment(self.decode(self.read(index))), self.labels[index]

    def read(self, index: int) -> bytes:
        """Read one file; the disk takes its time."""
        time.sleep(DISK_S)
        return self.files[index]

    def decode(self, file: bytes) -> Tensor:
        """Decompress one image."""
        pixels = torch.frombuffer(bytearray(zlib.decompress(file)), dtype=torch.uint8)
        return pixels.view(3, SIDE, SIDE)

    def augment(self, image: Tensor) -> Tensor:
        """Crop, change colours, and normalise."""
        top, left = torch.randint(SIDE - SIZE + 1, (2,)).tolist()
        image = image[:, top : top + SIZE, left : left + SIZE].float() / 255
        image = image * (0.8 + 0.4 * torch.rand(3, 1, 1))
        return (image - image.mean()) / image.std()


def make_model() -> nn.Module:
    """A small convolutional network."""

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    return nn.Sequential(
        block(3, 16), block(16, 32), block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def train(args: argparse.Namespace) -> None:
    """One pass over the images."""
    torch.manual_seed(args.seed)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    dataset = SyntheticImages(args.steps * args.batch_size, args.seed)
    loader = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=device.type == "cuda"
    )
    model = make_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[Tensor] = []
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    print(f"{len(losses)} steps on {device}: loss {losses[0].item():.3f} -> {losses[-1].item():.3f}")


def main() -> None:
    """Read the options and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0, help="processes that read, decode and augment images")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--seed", type=int, default=0)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
