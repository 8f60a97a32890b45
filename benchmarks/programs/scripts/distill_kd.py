"""Knowledge distillation on tabular sensor data: a wide teacher, a narrow student."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResidualMLP(nn.Module):
    def __init__(self, d_in, width, depth, classes):
        super().__init__()
        self.inp = nn.Linear(d_in, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        h = F.relu(self.inp(x))
        for lin in self.blocks:
            h = h + F.relu(lin(h))
        return self.out(h)


def kd_loss(student, teacher, labels, temperature=3.0, alpha=0.7):
    soft = F.kl_div(
        F.log_softmax(student / temperature, -1), F.log_softmax(teacher / temperature, -1),
        reduction="batchmean", log_target=True,
    ) * temperature ** 2
    return alpha * soft + (1 - alpha) * F.cross_entropy(student, labels)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=800)
    ap.add_argument("--batch", type=int, default=512)
    args = ap.parse_args()
    torch.manual_seed(0)
    features, classes = 128, 20
    w = torch.randn(features, classes)
    data = torch.randn(16384, features)
    labels = (data @ w + 2 * torch.randn(16384, classes)).argmax(1)

    teacher = ResidualMLP(features, 768, 2, classes).eval().requires_grad_(False).bfloat16()  # stands for a checkpoint
    student = ResidualMLP(features, 448, 3, classes)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3, fused=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=args.steps)

    t0, step = time.time(), 0
    running = torch.zeros(())
    while step < args.steps:
        for idx in torch.randperm(len(data)).split(args.batch):
            x = data[idx]
            x = x + 0.05 * torch.randn_like(x)  # new noise each time: the teacher has to see it
            with torch.autocast("cpu", dtype=torch.bfloat16):
                with torch.no_grad():
                    t_logits = teacher(x)
                s_logits = student(x)
            loss = kd_loss(s_logits.float(), t_logits.float(), labels[idx])
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            running += loss.detach()
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {running.item() / 100:.4f} lr {sched.get_last_lr()[0]:.2e}")
                running.zero_()
            if step >= args.steps:
                break
    print(f"{time.time() - t0:.1f}s")


if __name__ == "__main__":
    main()
