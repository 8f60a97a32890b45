# Neural style transfer (Gatys et al.), small network in place of VGG
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
STYLE_WEIGHT, CONTENT_WEIGHT, ITERATIONS = 1e4, 1.0, 60


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.ReLU())


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([
            nn.Sequential(conv(3, 24), conv(24, 24)),
            nn.Sequential(nn.MaxPool2d(2), conv(24, 48), conv(48, 48)),
            nn.Sequential(nn.MaxPool2d(2), conv(48, 96), conv(96, 96)),
        ])

    def forward(self, x):
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs


def gram(features):
    b, c, h, w = features.shape
    f = features.view(b, c, h * w)
    return f @ f.transpose(1, 2) / (c * h * w)


vgg = Features().eval()
for p in vgg.parameters():
    p.requires_grad_(False)

content_img = torch.rand(1, 3, 96, 96)
style_img = torch.rand(1, 3, 96, 96)
canvas = content_img.clone().requires_grad_(True)
optimizer = torch.optim.Adam([canvas], lr=0.02)

durations = []
for i in range(ITERATIONS):
    t0 = time.time()
    optimizer.zero_grad()
    target_features = vgg(canvas)
    content_features = vgg(content_img)
    style_features = vgg(style_img)

    content_loss = F.mse_loss(target_features[-1], content_features[-1])
    style_loss = 0
    for t, s in zip(target_features, style_features):
        style_loss = style_loss + F.mse_loss(gram(t), gram(s))

    loss = CONTENT_WEIGHT * content_loss + STYLE_WEIGHT * style_loss
    loss.backward()
    optimizer.step()
    durations.append(time.time() - t0)
    if i % 20 == 0:
        print(f"[{i}] content {content_loss.item():.4f} style {style_loss.item():.6f}")

print(f"median step {sorted(durations)[len(durations) // 2] * 1e3:.2f} ms")
