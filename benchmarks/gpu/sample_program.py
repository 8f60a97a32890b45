"""A small training program with one fault, for record_samples.py: python sample_program.py FAULT [--small] ...

FAULT is the name of a generated sample trace, so that a recording of this program can take its place. It imports torch
alone; the fault is the only thing that differs from `healthy`.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

FAULTS = (
    *("healthy", "dataloader-stall", "host-device-sync", "gpu-idle", "launch-bound", "allocator-churn"),
    *("gemm-without-tensor-cores", "convolution-without-tensor-cores"),
)
VOCABULARY, CLASSES = 8192, 1000


class Block(nn.Module):
    """One block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and feed-forward, both residual."""
        batch, length, width = x.shape
        qkv = self.attention(self.norms[0](x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.second(functional.gelu(self.first(self.norms[1](x))))


class Language(nn.Module):
    """A small language model."""

    def __init__(self, width: int, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits by token."""
        return self.head(self.blocks(self.embedding(tokens))).flatten(0, 1)


def make_network(width: int) -> nn.Sequential:
    """A convolutional network without a fault but its precision."""
    layers: list[nn.Module] = [nn.Conv2d(8, width, 3, 2, 1, bias=False)]
    for _ in range(6):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches; `tokenize_s` seconds of work each."""

    def __init__(self, shape: tuple[int, ...], tokenize_s: float) -> None:
        self.shape, self.tokenize_s = shape, tokenize_s
        self.images = len(shape) == 4

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.tokenize_s:
            tokenize(self.tokenize_s)
        if self.images:
            return torch.full(self.shape, float(index % 7)), torch.full(self.shape[:1], index % CLASSES)
        tokens = torch.arange(index, index + self.shape[0] * self.shape[1]).view(self.shape) % VOCABULARY
        return tokens, tokens.flatten()


def tokenize(seconds: float) -> int:
    """Work in Python for so long."""
    until, words = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        words += len(sorted(("the", "quick", "brown", "fox")))
    return words


def mask_tokens(seconds: float) -> int:
    """Work in Python between batch and forward."""
    return tokenize(seconds)


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description="A training program with one fault.")
    parser.add_argument("fault", choices=FAULTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.manual_seed(0)
    fault, device = options.fault, options.device
    images = fault.startswith("convolution")
    full = fault in ("gemm-without-tensor-cores", "convolution-without-tensor-cores")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not full
    width = 64 if options.small else 256 if fault == "launch-bound" or images else 1024
    shape = (2, 32) if options.small else (8, 64) if fault == "launch-bound" else (32, 1024)
    if full:
        shape = (2, 8, 16, 16) if images and options.small else (64, 8, 112, 112) if images else shape
    model = (make_network(width) if images else Language(width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    pin = device == "cuda"
    data = Batches(shape, 0.021 if fault == "dataloader-stall" else 0.0)
    loader = DataLoader(data, batch_size=None, pin_memory=pin)
    log: list[tuple[float, float]] = []
    for number, (x, y) in enumerate(loader):
        if number == options.steps:
            break
        x, y = x.to(device, non_blocking=pin), y.to(device, non_blocking=pin)
        if fault == "gpu-idle":
            mask_tokens(0.04 if pin else 0.017)
        with torch.autocast(device, torch.bfloat16, enabled=not full):
            loss = functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        if fault == "host-device-sync":
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            log.append((loss.item(), norm.item()))
        optimizer.step()
        if fault == "allocator-churn" and pin:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
