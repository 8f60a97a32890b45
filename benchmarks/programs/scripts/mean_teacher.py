"""Semi-supervised digits-like blobs with a mean teacher (consistency between a student and its running average)."""
import copy
import time
from argparse import ArgumentParser
from statistics import median

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.1))


def make_student():
    layers, cin = [], 1
    for cout in (16, 16, "M", 32, 32, "M", 64, 64):
        if cout == "M":
            layers.append(nn.MaxPool2d(2))
        else:
            layers.append(conv_block(cin, cout))
            cin = cout
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    # a wide projection head
    head = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 10))
    return nn.Sequential(body, head)


def average_into(teacher, student, alpha):
    """Return the next teacher: alpha * teacher + (1 - alpha) * student."""
    new_teacher = copy.deepcopy(teacher)
    blended = {}
    student_state = copy.deepcopy(student.state_dict())
    for key, value in copy.deepcopy(teacher.state_dict()).items():
        if value.dtype.is_floating_point:
            blended[key] = alpha * value + (1 - alpha) * student_state[key]
        else:
            blended[key] = student_state[key]
    new_teacher.load_state_dict(blended)
    return new_teacher


def noise(x):
    return x + 0.15 * torch.randn_like(x)


def ramp(step, length=40):
    return min(1.0, step / length) ** 2


def run(opts):
    torch.manual_seed(11)
    x_all = torch.randn(2048, 1, 16, 16)
    y_all = x_all.mean((1, 2, 3)).mul(40).add(5).clamp(0, 9).long()
    student = make_student()
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9, nesterov=True)

    durations = []
    for step in range(opts.steps):
        begin = time.perf_counter()
        labelled = torch.randint(0, 256, (8,))
        unlabelled = torch.randint(256, 2048, (16,))
        x = torch.cat([x_all[labelled], x_all[unlabelled]])

        logits = student(noise(x))
        with torch.no_grad():
            target = teacher(noise(x)).softmax(-1)
        supervised = F.cross_entropy(logits[:8], y_all[labelled])
        consistency = F.mse_loss(logits.softmax(-1), target)
        loss = supervised + 10 * ramp(step) * consistency

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        teacher = average_into(teacher, student, min(0.99, 1 - 1 / (step + 1)))

        durations.append(time.perf_counter() - begin)
        if step % opts.log_every == 0:
            print(f"step={step} supervised={supervised.item():.3f} consistency={consistency.item():.5f}")
    return durations


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--log-every", type=int, default=20)
    print(f"median step {median(run(parser.parse_args())[8:]) * 1000:.2f} ms")
