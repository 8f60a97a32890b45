"""Keyword spotting on raw audio with room reverberation as augmentation."""
import argparse
import math
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SR = 8000


def synth_keywords(n, classes, seed=0):
    """One second of 'speech': a harmonic stack with a class-dependent glide."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(SR) / SR
    labels = torch.randint(classes, (n,), generator=g)
    f0 = 100 + 25 * labels.float().unsqueeze(1) + 5 * torch.randn(n, 1, generator=g)
    glide = 1 + 0.2 * torch.rand(n, 1, generator=g) * t
    wav = sum(torch.sin(2 * math.pi * k * f0 * glide * t) / k for k in range(1, 5))
    return 0.1 * wav + 0.01 * torch.randn(n, SR, generator=g), labels


class Reverb(nn.Module):
    """Convolve with a random room impulse response out of a small bank."""

    def __init__(self, n_rooms=16, rt60=0.25, p=0.8):
        super().__init__()
        length = int(SR * rt60)
        decay = torch.exp(-6.9 * torch.arange(length) / length)
        bank = torch.randn(n_rooms, length) * decay
        bank[:, 0] = 1.0
        self.register_buffer("bank", bank / bank.norm(dim=1, keepdim=True))
        self.p = p

    def forward(self, wav):
        if random.random() > self.p:
            return wav
        rir = self.bank[random.randrange(self.bank.size(0))]
        n = rir.numel()
        padded = F.pad(wav.unsqueeze(1), (n - 1, 0))
        wet = F.conv1d(padded, rir.flip(0).view(1, 1, -1)).squeeze(1)
        return wet / wet.abs().amax(dim=1, keepdim=True).clamp(min=1e-4)


class LogMel(nn.Module):
    def __init__(self, n_fft=512, hop=128, n_mels=40):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        mel = lambda f: 2595 * math.log10(1 + f / 700)
        pts = torch.linspace(mel(20), mel(SR / 2), n_mels + 2)
        hz = 700 * (10 ** (pts / 2595) - 1)
        freqs = torch.linspace(0, SR / 2, n_fft // 2 + 1)
        up = (freqs - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - freqs) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("fb", torch.minimum(up, down).clamp(min=0))

    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, self.hop, window=self.window, return_complex=True).abs().square()
        return torch.log(self.fb @ spec + 1e-6)


class KWSNet(nn.Module):
    def __init__(self, classes, n_mels=40, ch=96):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(n_mels, ch, 5, padding=2), nn.BatchNorm1d(ch), nn.ReLU(),
            nn.Conv1d(ch, ch, 5, stride=2, padding=2), nn.BatchNorm1d(ch), nn.ReLU(),
            nn.Conv1d(ch, ch, 3, padding=1), nn.BatchNorm1d(ch), nn.ReLU(),
        )
        self.head = nn.Linear(ch, classes)

    def forward(self, x):
        return self.head(self.net(x).mean(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=300)
    ap.add_argument("--batch", type=int, default=16)
    args = ap.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    wavs, labels = synth_keywords(1024, 12)
    augment, feats, model = Reverb(), LogMel(), KWSNet(12)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    t0 = time.time()
    step, running = 0, torch.zeros(())
    while step < args.steps:
        perm = torch.randperm(len(wavs))
        for idx in perm.split(args.batch):
            with torch.no_grad():
                x = feats(augment(wavs[idx]))
            loss = F.cross_entropy(model(x), labels[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"step {step}: loss {running.item() / 100:.4f}")
                running.zero_()
            if step >= args.steps:
                break
    print(f"total {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
