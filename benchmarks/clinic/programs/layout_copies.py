# ConvNeXt-like stem: goes to channels-last for the norm and back for each convolution
import argparse, time
import torch
from torch import nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, dim, fixed):
        super().__init__()
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, groups=1)
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.fixed = fixed
    def forward(self, x):
        y = self.conv(x)
        if self.fixed:  # the tensors are channels-last all the way, permute is a view
            y = F.layer_norm(y.permute(0, 2, 3, 1), self.weight.shape, self.weight, self.bias)
            return x + F.relu(y.permute(0, 3, 1, 2))
        y = y.permute(0, 2, 3, 1).contiguous()  # planted
        y = F.layer_norm(y, self.weight.shape, self.weight, self.bias)
        y = y.permute(0, 3, 1, 2).contiguous()  # planted
        return x + F.relu(y)

ap = argparse.ArgumentParser()
ap.add_argument("--device", default="cpu")
ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--fixed", action="store_true")
args = ap.parse_args()
torch.manual_seed(0)
cuda = args.device == "cuda"
dim, size = max(8, int((64 if cuda else 8) * args.scale)), 128 if cuda else 56
model = nn.Sequential(*[Block(dim, args.fixed) for _ in range(4)]).to(args.device)
x = torch.randn(16 if cuda else 4, dim, size, size, device=args.device)
if args.fixed:
    model = model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
opt = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
for i in range(45):
    if i == 8:
        if cuda: torch.cuda.synchronize()
        t0 = time.perf_counter_ns()
    loss = model(x).square().mean()  # planted
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
print("step_ns", (time.perf_counter_ns() - t0) // 37)
