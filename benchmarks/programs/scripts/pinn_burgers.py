"""Physics-informed network for the viscous Burgers equation  u_t + u u_x = nu u_xx."""
import argparse
import math
import time

import torch
import torch.nn as nn

NU = 0.01 / math.pi


class MLP(nn.Module):
    def __init__(self, width=96, depth=5):
        super().__init__()
        layers = [nn.Linear(2, width), nn.Tanh()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers.append(nn.Linear(width, 1))
        self.net = nn.Sequential(*layers)
        for m in self.net:
            if isinstance(m, nn.Linear):
                nn.init.xavier_normal_(m.weight)
                nn.init.zeros_(m.bias)

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def grad(out, wrt):
    return torch.autograd.grad(out, wrt, torch.ones_like(out), create_graph=True)[0]


class BurgersProblem:
    def __init__(self, net, n_interior=1500, n_bound=100, n_init=200):
        self.net = net
        self.n_interior, self.n_bound, self.n_init = n_interior, n_bound, n_init

    def u(self, x, t):
        return self.net(x, t)

    def u_t(self, x, t):
        return grad(self.u(x, t), t)

    def u_x(self, x, t):
        return grad(self.u(x, t), x)

    def u_xx(self, x, t):
        return grad(self.u_x(x, t), x)

    def residual(self, x, t):
        return self.u_t(x, t) + self.u(x, t) * self.u_x(x, t) - NU * self.u_xx(x, t)

    def sample(self):
        x = (torch.rand(self.n_interior, 1) * 2 - 1).requires_grad_()
        t = torch.rand(self.n_interior, 1).requires_grad_()
        return x, t

    def losses(self):
        x, t = self.sample()
        pde = self.residual(x, t).square().mean()

        x0 = torch.rand(self.n_init, 1) * 2 - 1
        init = (self.u(x0, torch.zeros_like(x0)) + torch.sin(math.pi * x0)).square().mean()

        tb = torch.rand(self.n_bound, 1)
        xb = torch.where(torch.rand_like(tb) < 0.5, -1.0, 1.0)
        bound = self.u(xb, tb).square().mean()
        return pde, init, bound


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--lr", type=float, default=1e-3)
    args = ap.parse_args()
    torch.manual_seed(3)
    net = MLP()
    problem = BurgersProblem(net)
    opt = torch.optim.Adam(net.parameters(), lr=args.lr, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    t0 = time.time()
    for it in range(1, args.steps + 1):
        opt.zero_grad(set_to_none=True)
        pde, init, bound = problem.losses()
        loss = pde + 10 * init + 10 * bound
        loss.backward()
        opt.step()
        sched.step()
        if it % 100 == 0:
            print(f"it {it} pde {pde.item():.3e} init {init.item():.3e} bound {bound.item():.3e}")
    print(f"time {time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
