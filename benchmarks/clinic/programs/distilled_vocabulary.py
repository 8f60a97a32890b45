"""Distil a teacher's next-token distribution into a smaller student, as one divergence over the vocabulary."""
import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class LanguageModel(nn.Module):
    def __init__(self, vocabulary, width, layers):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def hidden(self, tokens):
        h = self.embed(tokens).flatten(0, 1)
        for layer in self.body:
            h = h + F.silu(layer(h))
        return h


class Distiller:
    temperature = 2.0

    def __init__(self, teacher, student, pieces):
        self.teacher, self.student, self.pieces = teacher, student, pieces

    def divergence(self, of_student, of_teacher):
        student = F.log_softmax(self.student.head(of_student) / self.temperature, dim=-1)  # planted
        with torch.no_grad():
            teacher = F.log_softmax(self.teacher.head(of_teacher) / self.temperature, dim=-1)  # planted
        return F.kl_div(student, teacher, log_target=True, reduction="sum")  # planted

    def loss(self, tokens):
        with torch.no_grad():
            of_teacher = self.teacher.hidden(tokens)
        of_student = self.student.hidden(tokens)
        if self.pieces == 1:
            return self.divergence(of_student, of_teacher) / tokens.numel()
        parts = zip(of_student.chunk(self.pieces), of_teacher.chunk(self.pieces))
        return sum(checkpoint(self.divergence, *part, use_reentrant=False) for part in parts) / tokens.numel()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    vocabulary, length = 8000, int(128 * args.scale)
    teacher = LanguageModel(vocabulary, 192, 4).to(args.device)
    student = LanguageModel(vocabulary, 96, 2).to(args.device)
    distiller = Distiller(teacher, student, 4 if args.fixed else 1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for step in range(24):
        if step == 8:
            start = time.perf_counter_ns()
        tokens = torch.randint(vocabulary, (4, length), device=args.device)
        loss = distiller.loss(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("step_ns", (time.perf_counter_ns() - start) // 16)
    print("divergence", loss.item())


main()
