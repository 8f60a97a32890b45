import time

import torch

# Hyperparameters of a Gaussian process by gradient ascent on the log marginal likelihood.
# y ~ N(0, s2 * exp(-d^2 / 2l^2) + noise)

torch.manual_seed(3)
n, d = 500, 4
X = torch.rand(n, d)
y = torch.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * torch.randn(n)

log_l = torch.zeros(d, requires_grad=True)
log_s2 = torch.zeros((), requires_grad=True)
log_noise = torch.tensor(-2.0, requires_grad=True)
params = [log_l, log_s2, log_noise]


def kernel(A, B):
    A, B = A / log_l.exp(), B / log_l.exp()
    sq = (A**2).sum(1)[:, None] + (B**2).sum(1)[None, :] - 2 * A @ B.T
    return log_s2.exp() * torch.exp(-0.5 * sq.clamp_min(0))


def neg_log_marginal():
    K = kernel(X, X) + log_noise.exp() * torch.eye(n)
    K_inv = torch.inverse(K)
    fit = y @ K_inv @ y
    return 0.5 * (fit + torch.logdet(K)) / n


def fit(steps=60):
    opt = torch.optim.Adam(params, lr=0.05)
    took = []
    for i in range(steps):
        t0 = time.perf_counter()
        opt.zero_grad()
        nll = neg_log_marginal()
        nll.backward()
        opt.step()
        took.append(time.perf_counter() - t0)
        if i % 20 == 19:
            print(f"{i + 1:3d}  nll {nll.item():+.4f}  l {[round(v, 2) for v in log_l.exp().tolist()]}")
    return sorted(took)[steps // 2] * 1e3


print(f"median step {fit():.2f} ms")
