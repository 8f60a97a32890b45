"""Keyword spotting on log-mel spectrograms, with SpecAugment.

    python keyword_stft.py --epochs 1
"""
import argparse
import math
import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLE_RATE = 16000


def mel_filterbank(n_mels=64, n_fft=512):
    def to_mel(hz):
        return 2595 * math.log10(1 + hz / 700)

    points = torch.linspace(to_mel(20), to_mel(SAMPLE_RATE / 2), n_mels + 2)
    hz = 700 * (10 ** (points / 2595) - 1)
    freqs = torch.linspace(0, SAMPLE_RATE / 2, n_fft // 2 + 1)
    up = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    down = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self, n_fft=512, hop=160):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.fb = mel_filterbank(n_fft=n_fft)

    def forward(self, wav):
        wav = torch.cat([wav[..., :1], wav[..., 1:] - 0.97 * wav[..., :-1]], dim=-1)
        spec = torch.stft(wav, self.n_fft, self.hop, window=torch.hann_window(self.n_fft), return_complex=True)
        mel = self.fb @ spec.abs().pow(2)
        mel = torch.log(mel + 1e-6)
        return (mel - mel.mean((-2, -1), keepdim=True)) / mel.std((-2, -1), keepdim=True)


class SpeechCommands(Dataset):
    """Tones and noise in place of the real recordings; one second each."""

    def __init__(self, clips, augment=True):
        g = torch.Generator().manual_seed(0)
        t = torch.arange(SAMPLE_RATE) / SAMPLE_RATE
        self.labels = torch.randint(0, 12, (clips,), generator=g)
        pitch = 200 + 90 * self.labels
        self.wavs = torch.sin(2 * math.pi * pitch[:, None] * t) + 0.3 * torch.randn(clips, SAMPLE_RATE, generator=g)
        self.features = LogMel()
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        mel = self.features(self.wavs[index])
        if self.augment:
            f0 = int(torch.randint(0, 56, ()))
            t0 = int(torch.randint(0, 80, ()))
            mel = mel.clone()
            mel[f0 : f0 + 8] = 0
            mel[:, t0 : t0 + 20] = 0
        return mel, self.labels[index]


class KWSNet(nn.Module):
    def __init__(self, classes=12, width=48):
        super().__init__()
        self.front = nn.Conv1d(64, width, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(width, width, 9, padding=4), nn.BatchNorm1d(width), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.front(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(-1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--clips", type=int, default=320)
    args = parser.parse_args()
    torch.manual_seed(1)
    dataset = SpeechCommands(args.clips)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)
    net = KWSNet()
    optim = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    durations = []
    for epoch in range(args.epochs):
        hits = 0
        begin = time.perf_counter()
        for mel, label in loader:
            optim.zero_grad()
            out = net(mel)
            loss = nn.functional.cross_entropy(out, label, label_smoothing=0.1)
            loss.backward()
            optim.step()
            hits += (out.argmax(1) == label).sum().item()
            end = time.perf_counter()
            durations.append(end - begin)
            begin = end
        print(f"epoch {epoch}: accuracy {hits / len(dataset):.3f}")
    print(f"median step {median(durations[8:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
