"""Convolutional VAE; reconstructions go to results/ so that one can watch it learn."""
import os
import struct
import tempfile
import time
import zlib
from statistics import median

import torch
from torch import nn, optim
from torch.nn import functional as F

BATCH_SIZE = 64
EPOCHS = 4
BATCHES = 16


def write_png(path, image):
    """image: uint8, height x width x 3."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + image[y].tobytes() for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)))
        f.write(chunk(b"IDAT", zlib.compress(rows, 6)) + chunk(b"IEND", b""))


def save_image(tensor, path, nrow=8):
    n, c, h, w = tensor.shape
    grid = tensor.view(n // nrow, nrow, c, h, w).permute(0, 3, 1, 4, 2).reshape(n // nrow * h, nrow * w, c)
    write_png(path, grid.mul(255).clamp(0, 255).byte().numpy())


class VAE(nn.Module):
    def __init__(self, z=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten())
        self.mu = nn.Linear(32 * 64, z)
        self.logvar = nn.Linear(32 * 64, z)
        self.up = nn.Linear(z, 32 * 64)
        self.dec = nn.Sequential(
            nn.Unflatten(1, (32, 8, 8)), nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Sigmoid(),
        )

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(self.up(z)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


torch.manual_seed(1)
train_data = torch.rand(BATCHES, BATCH_SIZE, 3, 4, 4).repeat_interleave(8, -1).repeat_interleave(8, -2)
train_data = (train_data + 0.05 * torch.randn_like(train_data)).clamp(0, 1)
model = VAE()
optimizer = optim.Adam(model.parameters(), lr=1e-3, fused=True)
times = []
with tempfile.TemporaryDirectory() as tmp:
    results = os.path.join(tmp, "results")
    os.makedirs(results)
    for epoch in range(EPOCHS):
        model.train()
        train_loss = 0
        for batch_idx, data in enumerate(train_data):
            tic = time.time()
            optimizer.zero_grad()
            recon_batch, mu, logvar = model(data)
            loss = loss_function(recon_batch, data, mu, logvar)
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
            comparison = torch.cat([data[:32], recon_batch[:32].detach()])
            save_image(comparison, f"{results}/reconstruction_{epoch}_{batch_idx}.png")
            times.append(time.time() - tic)
        print(f"====> Epoch: {epoch} Average loss: {train_loss / BATCHES / BATCH_SIZE:.2f}")
print(f"median step {median(times[8:]) * 1e3:.2f} ms")
