"""Phoneme recognition with CTC; the exponential moving average of the weights decodes.

    python speech_ema.py --steps 150
"""
import argparse
import copy
import time
from statistics import median

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, mels=40, hidden=160, layers=4, phonemes=42):
        super().__init__()
        self.subsample = nn.Conv1d(mels, hidden, 3, stride=4, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, 4 * hidden), nn.SiLU(), nn.Linear(4 * hidden, hidden))
            for _ in range(layers)
        )
        self.mix = nn.ModuleList(nn.Conv1d(hidden, hidden, 7, padding=3, groups=hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, phonemes)

    def forward(self, mel):
        x = F.silu(self.subsample(mel))
        for mix, block in zip(self.mix, self.blocks):
            x = x + mix(x)
            x = x + block(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x.transpose(1, 2)).log_softmax(-1)


def utterances(batch, frames=200, phonemes=42):
    mel = torch.randn(batch, 40, frames)
    targets = torch.randint(1, phonemes, (batch, 18))
    return mel, targets, torch.full((batch,), frames // 4), torch.full((batch,), 18)


def average(teacher, model, decay):
    new = copy.deepcopy(model)
    state = teacher.state_dict()
    for name, value in new.state_dict().items():
        if value.dtype.is_floating_point:
            value.mul_(1 - decay).add_(state[name], alpha=decay)
    return new.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--decay", type=float, default=0.999)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Encoder()
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    corpus = [utterances(args.batch_size) for _ in range(32)]
    times, start = [], time.perf_counter()
    for step in range(args.steps):
        mel, targets, lengths, target_lengths = corpus[step % len(corpus)]
        loss = F.ctc_loss(model(mel).transpose(0, 1), targets, lengths, target_lengths, zero_infinity=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        teacher = average(teacher, model, args.decay)
        now = time.perf_counter()
        times.append(now - start)
        start = now
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    print(f"median step {median(times[10:]) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
