# Household power consumption: next-day forecast with an LSTM, time series tutorial style
import time

import numpy as np
import torch
from torch import nn

WINDOW, FEATURES, HIDDEN, BATCH = 72, 7, 96, 32


def make_series(n=6000):
    t = np.arange(n)
    base = np.sin(2 * np.pi * t / 24)[:, None] * np.random.rand(1, FEATURES)
    return (base + 0.1 * np.random.randn(n, FEATURES)).astype(np.float32)


def create_sequences(series):
    xs, ys = [], []
    for i in range(0, len(series) - WINDOW - 24, 4):
        xs.append(series[i:i + WINDOW])
        ys.append(series[i + WINDOW:i + WINDOW + 24, 0])
    return torch.from_numpy(np.stack(xs)), torch.from_numpy(np.stack(ys))


class PowerLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, HIDDEN, num_layers=2, batch_first=True)
        self.fc = nn.Linear(HIDDEN, 24)

    def forward(self, x):
        h = torch.zeros(2, x.size(0), HIDDEN)
        c = torch.zeros(2, x.size(0), HIDDEN)
        for t in range(x.size(1)):
            out, (h, c) = self.lstm(x[:, t:t + 1, :], (h, c))
        return self.fc(out[:, -1, :])


np.random.seed(0)
torch.manual_seed(0)
X, Y = create_sequences(make_series())
model = PowerLSTM()
loss_function = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

times = []
model.train()
for epoch in range(1):
    permutation = torch.randperm(len(X))
    for i in range(0, len(X) - BATCH, BATCH):
        start = time.time()
        indices = permutation[i:i + BATCH]
        optimizer.zero_grad()
        y_pred = model(X[indices])
        single_loss = loss_function(y_pred, Y[indices])
        single_loss.backward()
        optimizer.step()
        times.append(time.time() - start)
    print(f"epoch: {epoch:3} loss: {single_loss.item():10.8f}")
print(f"median step {np.median(times) * 1e3:.2f} ms")
