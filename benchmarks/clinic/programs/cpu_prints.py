import argparse, io, time
import torch, torch.nn as nn

ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cuda"); ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--fixed", action="store_true")
a = ap.parse_args()
torch.manual_seed(0)
w = max(8, int(512 * a.scale))
blocks = nn.ModuleList([nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, w)) for _ in range(12)]).to(a.device)
opt = torch.optim.SGD(blocks.parameters(), lr=1e-3, fused=True)
x = torch.randn(256, w, device=a.device)
log = io.StringIO()
STEPS = 60
norms = []
for it in range(STEPS):
    if it == 8:
        if a.device == "cuda": torch.cuda.synchronize()
        t = time.perf_counter_ns()
    h = x
    for k, b in enumerate(blocks):
        h = h + b(h)
        norm = h.detach().norm()
        if a.fixed:
            norms.append(norm)
        else:
            print(it, k, norm.cpu().numpy(), file=log)  # planted
    loss = h.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(torch.stack(norms[-12:]).tolist() if norms else "", loss.item())
print("step_ns", (time.perf_counter_ns() - t) // (STEPS - 8))
