"""Point cloud autoencoder, Chamfer distance as in the first PointNet repositories."""
import argparse
import time

import torch
from torch import nn


def get_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=50)
    ap.add_argument("--batch_size", type=int, default=8)
    ap.add_argument("--num_points", type=int, default=512)
    return ap.parse_args()


def sample_clouds(batch, n, gen):
    """Ellipsoids of random axes."""
    p = torch.randn(batch, n, 3, generator=gen)
    p = p / p.norm(dim=-1, keepdim=True)
    return p * (0.3 + torch.rand(batch, 1, 3, generator=gen))


class PointAE(nn.Module):
    def __init__(self, n, latent=128):
        super().__init__()
        self.n = n
        self.enc = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, latent))
        self.dec = nn.Sequential(nn.Linear(latent, 256), nn.ReLU(), nn.Linear(256, 3 * n))

    def forward(self, x):
        z = self.enc(x).max(dim=1).values
        return self.dec(z).reshape(-1, self.n, 3)


def chamfer(pred, gt):
    diff = pred[:, :, None, :] - gt[:, None, :, :]
    d = torch.sum(diff ** 2, dim=-1)
    return d.min(dim=1).values.mean() + d.min(dim=2).values.mean()


if __name__ == "__main__":
    args = get_args()
    gen = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    net = PointAE(args.num_points)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    elapsed = []
    for it in range(args.iters):
        tic = time.perf_counter()
        cloud = sample_clouds(args.batch_size, args.num_points, gen)
        loss = chamfer(net(cloud), cloud)
        opt.zero_grad()
        loss.backward()
        opt.step()
        elapsed.append(time.perf_counter() - tic)
        if (it + 1) % 10 == 0:
            print("[%d] chamfer %.5f" % (it + 1, loss.item()))
    elapsed.sort()
    print("median step %.2f ms" % (1000 * elapsed[len(elapsed) // 2]))
