"""Spectrograms made in workers, each of which computes with as many threads as the training."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH = 45, 16


class Recordings(Dataset):
    """Noise in place of recordings; the spectrogram is made on the fly."""

    def __init__(self, count, samples):
        self.waves = torch.randn(count, samples)
        self.window = torch.hann_window(512)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        spectrum = torch.stft(self.waves[index], 512, 128, window=self.window, return_complex=True)
        return spectrum.abs().clamp_min(1e-5).log(), index % 10


class Classifier(nn.Module):
    def __init__(self, bins, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(bins, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.body(x.transpose(1, 2)).mean(1))


def use_all_threads(worker_id):
    torch.set_num_threads(torch.get_num_threads() if worker_id < 0 else 4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(0)

    data = Recordings(BATCH * STEPS, int(8000 * args.scale))
    if args.fixed:
        loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    else:
        loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=4, worker_init_fn=use_all_threads)  # planted
    model = Classifier(257, 384).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)

    for step, (x, y) in enumerate(loader):
        if step == 8:
            start_ns = time.perf_counter_ns()
        x, y = x.to(args.device), y.to(args.device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
    print("step_ns", (time.perf_counter_ns() - start_ns) // (STEPS - 8))


if __name__ == "__main__":
    main()
