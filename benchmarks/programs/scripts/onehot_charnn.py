# Next-word MLP language model (Bengio et al. 2003), one-hot words into the first layer
import time
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(7)
V, CONTEXT, E, H, BS, STEPS = 4000, 4, 64, 128, 128, 60

text = torch.randint(0, V, (50_000,))


class NPLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.C = nn.Linear(V, E, bias=False)
        self.hidden = nn.Linear(CONTEXT * E, H)
        self.out = nn.Linear(H, 500)

    def forward(self, idx):
        x = F.one_hot(idx, num_classes=V).float()
        e = self.C(x)
        h = torch.tanh(self.hidden(e.flatten(1)))
        return self.out(h)


def batch():
    i = torch.randint(0, len(text) - CONTEXT - 1, (BS,))
    ctx = text[i[:, None] + torch.arange(CONTEXT)]
    return ctx, text[i + CONTEXT] % 500


model = NPLM()
opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
durations = []
for step in range(STEPS):
    start = time.perf_counter()
    xb, yb = batch()
    logits = model(xb)
    loss = F.cross_entropy(logits, yb)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    durations.append(1e3 * (time.perf_counter() - start))
    if step % 20 == 0:
        print(f"{step:4d} | loss {loss.item():.3f}")
print(f"median step {sorted(durations)[STEPS // 2]:.2f} ms")
