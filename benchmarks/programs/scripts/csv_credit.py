"""Credit risk from a CSV export: the classic Dataset class."""
import csv
import io
import random
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

COLUMNS = [f"f{i}" for i in range(40)]
GRADES = ["A", "B", "C", "D", "E", "F"]


def export(rows=12_000):
    rnd = random.Random(11)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [*COLUMNS, "grade", "default"])
    writer.writeheader()
    for _ in range(rows):
        row = {c: f"{rnd.gauss(0, 1):.5f}" for c in COLUMNS}
        writer.writerow({**row, "grade": rnd.choice(GRADES), "default": rnd.randint(0, 1)})
    buffer.seek(0)
    return buffer


class CreditDataset(Dataset):
    def __init__(self, file):
        self.rows = list(csv.DictReader(file))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        features = [float(row[c]) for c in COLUMNS]
        grade = [0.0] * len(GRADES)
        grade[GRADES.index(row["grade"])] = 1.0
        x = torch.tensor(features + grade)
        y = torch.tensor(float(row["default"]))
        return x, y


train_set = CreditDataset(export())
loader = DataLoader(train_set, batch_size=256, shuffle=True, drop_last=True)

model = nn.Sequential(
    nn.Linear(46, 256), nn.ReLU(), nn.Dropout(0.2),
    nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 1))
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)

steps = []
for epoch in range(2):
    total, t = 0.0, time.time()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x).squeeze(1), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        now = time.time()
        steps.append(now - t)
        t = now
    print(f"epoch {epoch} | train loss {total / len(loader):.4f}")
steps.sort()
print(f"median step {1000 * steps[len(steps) // 2]:.2f} ms")
