"""Computes the same spectrograms in each epoch, in the step."""

# says: prepares its batch itself
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule

wav = torch.randn(64, 16000 * 2)
y = torch.randint(0, 10, (64,))
mel = torch.rand(513, 64)
net = nn.Sequential(nn.Conv1d(64, 64, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def features(w):
    s = torch.stft(w, 1024, 256, window=torch.hann_window(1024), return_complex=True).abs().pow(2)
    return (s.transpose(1, 2) @ mel).clamp_min(1e-9).log().transpose(1, 2)


with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=6, repeat=1),
    with_stack=True,
    record_shapes=True,
) as p:
    for i in range(8):
        k = (i * 16) % 64
        x = features(wav[k : k + 16])
        loss = nn.functional.cross_entropy(net(x), y[k : k + 16])
        opt.zero_grad()
        loss.backward()
        opt.step()
        p.step()
p.export_chrome_trace(sys.argv[1] + "/trace.json")
