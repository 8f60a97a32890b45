"""One worker makes items in slow Python and does not keep up."""

# says: the training loop waits
import sys

from models import Block, Net, nn, time, torch
from torch.profiler import profile, ProfilerActivity, schedule
from torch.utils.data import Dataset, DataLoader


class D(Dataset):
    def __len__(s):
        return 640

    def __getitem__(s, i):
        v = 0
        for k in range(4000):
            v += k * k % 7
        return torch.full((64,), float(v)), i % 2


if __name__ == "__main__":
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=8, repeat=1), with_stack=True
    ) as p:
        for i, (x, y) in enumerate(DataLoader(D(), batch_size=32, num_workers=1)):
            loss = nn.functional.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            p.step()
            if i == 11:
                break
    p.export_chrome_trace(sys.argv[1] + "/trace.json")
