"""Speech enhancement with a gated dilated CNN on raw waveforms. Noise is mixed on the fly, a batch at a time."""
import functools
import time
from collections import deque

import torch
from torch import nn, optim


def mixer(seconds=60, rate=8000, segment=2048, batch=8):
    g = torch.Generator().manual_seed(2)
    t = torch.arange(seconds * rate) / rate
    speech = torch.sin(2 * torch.pi * 180 * t) * (1 + torch.sin(2 * torch.pi * 3 * t)) / 2
    noise = torch.randn(seconds * rate, generator=g)
    grid = torch.arange(segment)

    def draw():
        a = torch.randint(len(t) - segment, (batch, 1), generator=g)
        b = torch.randint(len(t) - segment, (batch, 1), generator=g)
        snr = torch.rand(batch, 1, generator=g) * 0.5
        clean = speech[a + grid]
        return (clean + snr * noise[b + grid]).unsqueeze(1), clean.unsqueeze(1)

    return draw


class Gated(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.conv = nn.Conv1d(c, 2 * c, 3, padding=d, dilation=d)
        self.res = nn.Conv1d(c, c, 1)

    def forward(self, x):
        return x + self.res(nn.functional.glu(self.conv(x), dim=1))


def enhancer(c=48):
    return nn.Sequential(nn.Conv1d(1, c, 1), *[Gated(c, 2**i) for i in range(6)], nn.Conv1d(c, 1, 1))


def si_snr(est, ref):
    est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
    proj = (est * ref).sum(-1, keepdim=True) / (ref.pow(2).sum(-1, keepdim=True) + 1e-8) * ref
    return -10 * torch.log10(proj.pow(2).sum(-1) / ((est - proj).pow(2).sum(-1) + 1e-8) + 1e-8).mean()


def update(net, opt, objective, noisy, clean):
    opt.zero_grad()
    value = objective(net(noisy), clean)
    value.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 5.0)
    opt.step()
    return value.detach()


def main(iterations=50):
    torch.manual_seed(0)
    draw, net = mixer(), enhancer()
    opt = optim.Adam(net.parameters(), lr=1e-3, fused=True)
    step = functools.partial(update, net, opt, si_snr)
    recent, spent = deque(maxlen=20), []
    for i in range(iterations):
        begin = time.perf_counter()
        recent.append(step(*draw()))
        spent.append(time.perf_counter() - begin)
        if i % 10 == 9:
            print(f"iteration {i + 1} si-snr loss {torch.stack(tuple(recent)).mean():.2f} dB")
    print(f"median step {sorted(spent)[len(spent) // 2] * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
