'''Fine-tune only the classifier of a "pretrained" CNN on 10 bird species.'''
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
DEVICE = torch.device("cpu")
EPOCHS, BATCH = 3, 16


class Birds(Dataset):
    """Images are kept in memory as uint8."""

    def __init__(self, n=320):
        self.images = torch.randint(0, 256, (n, 3, 64, 64), dtype=torch.uint8)
        self.species = torch.randint(0, 10, (n,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i].float() / 255, self.species[i]


def conv_block(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv_block(3, 32, 2), conv_block(32, 32), conv_block(32, 64, 2), conv_block(64, 64), conv_block(64, 64),
            conv_block(64, 128, 2), conv_block(128, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.features(x)


class BirdNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = Backbone()
        self.classifier = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, num_classes))

    def forward(self, images):
        features = self.backbone(images)
        return self.classifier(features)


loader = DataLoader(Birds(), batch_size=BATCH, shuffle=True)
model = BirdNet(10).to(DEVICE)
# the backbone stays as it is
optimizer = torch.optim.SGD(model.classifier.parameters(), lr=1e-2, momentum=0.9)
criterion = nn.CrossEntropyLoss()

step_times = []
for epoch in range(EPOCHS):
    model.train()
    model.backbone.eval()
    correct = total = 0
    t0 = time.time()
    for images, species in loader:
        images, species = images.to(DEVICE), species.to(DEVICE)
        optimizer.zero_grad()
        out = model(images)
        loss = criterion(out, species)
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == species).sum().item()
        total += len(species)
        step_times.append(time.time() - t0)
        t0 = time.time()
    print(f"epoch {epoch + 1}/{EPOCHS}  acc {correct / total:.3f}")
print("median step {:.2f} ms".format(sorted(step_times)[len(step_times) // 2] * 1000))
