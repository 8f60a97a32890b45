# tiny-nerf: fit a radiance field to renderings of a coloured ball (after the usual notebook)
import sys
import time

import numpy as np
import torch

n_iters = int(sys.argv[1]) if len(sys.argv) > 1 else 60
N_RAND, N_SAMPLES, L = 256, 24, 6
H = W = 64
focal = 60.0


def get_rays(c2w):
    i, j = torch.meshgrid(torch.arange(W).float(), torch.arange(H).float(), indexing="xy")
    dirs = torch.stack([(i - W * 0.5) / focal, -(j - H * 0.5) / focal, -torch.ones_like(i)], -1)
    rays_d = (dirs[..., None, :] * c2w[:3, :3]).sum(-1)
    return c2w[:3, 3].expand(rays_d.shape), rays_d


def pose(theta):
    c, s = np.cos(theta), np.sin(theta)
    return torch.tensor([[c, 0, s, 4 * s], [0, 1, 0, 0], [-s, 0, c, 4 * c], [0, 0, 0, 1]], dtype=torch.float32)


def picture(o, d):
    d = d / d.norm(dim=-1, keepdim=True)
    b = (o * d).sum(-1)
    disc = b**2 - (o * o).sum(-1) + 1
    hit = o + d * (-b - disc.clamp(min=0).sqrt())[..., None]
    return torch.where(disc[..., None] > 0, hit * 0.5 + 0.5, torch.ones_like(hit))


def posenc(x):
    rets = [x]
    for k in range(L):
        rets += [torch.sin(2.0**k * x), torch.cos(2.0**k * x)]
    return torch.cat(rets, -1)


def sample_points(rays_o, rays_d, near, far):
    all_pts, all_z = [], []
    for r in range(rays_o.shape[0]):
        z = torch.linspace(near, far, N_SAMPLES)
        z = z + torch.rand(N_SAMPLES) * (far - near) / N_SAMPLES
        pts = rays_o[r] + rays_d[r] * z[:, None]
        all_pts.append(pts)
        all_z.append(z)
    return torch.stack(all_pts), torch.stack(all_z)


def render(model, rays_o, rays_d):
    pts, z_vals = sample_points(rays_o, rays_d, 2.0, 6.0)
    raw = model(posenc(pts.reshape(-1, 3))).reshape(*pts.shape[:-1], 4)
    sigma, rgb = torch.relu(raw[..., 3]), torch.sigmoid(raw[..., :3])
    dists = torch.cat([z_vals[..., 1:] - z_vals[..., :-1], torch.full_like(z_vals[..., :1], 1e10)], -1)
    alpha = 1.0 - torch.exp(-sigma * dists)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
    weights = alpha * trans
    return (weights[..., None] * rgb).sum(-2) + (1.0 - weights.sum(-1, keepdim=True))


torch.manual_seed(9458)
rays = [get_rays(pose(t)) for t in np.linspace(0, 2 * np.pi, 12, endpoint=False)]
images = [picture(o, d) for o, d in rays]
width = 96
model = torch.nn.Sequential(
    torch.nn.Linear(3 + 3 * 2 * L, width), torch.nn.ReLU(),
    torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, width), torch.nn.ReLU(),
    torch.nn.Linear(width, 4),
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)

times, psnrs = [], []
for i in range(n_iters):
    t0 = time.time()
    k = np.random.randint(len(images))
    pix = torch.randint(0, H * W, (N_RAND,))
    o, d, target = rays[k][0].reshape(-1, 3)[pix], rays[k][1].reshape(-1, 3)[pix], images[k].reshape(-1, 3)[pix]
    loss = torch.mean((render(model, o, d) - target) ** 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 15 == 0:
        psnrs.append(-10.0 * np.log10(loss.item()))
        print(i, "psnr %.2f" % psnrs[-1])
    times.append(time.time() - t0)
print(f"median step {np.median(times[8:]) * 1e3:.2f} ms")
