# A tabular classifier in the scikit-learn style.
import argparse
import time
from statistics import median

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
from torch import nn

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=100)
args = ap.parse_args()

rng = np.random.RandomState(0)
X = rng.randn(args.steps * 64, 40).astype(np.float32)
y = (X[:, :5].sum(axis=1) > 0).astype(np.int64)


class ClassifierModule(nn.Module):
    def __init__(self, num_units=1024, nonlin=nn.ReLU(), dropout=0.5):
        super().__init__()
        self.dense0 = nn.Linear(40, num_units)
        self.nonlin = nonlin
        self.dropout = nn.Dropout(dropout)
        self.dense1 = nn.Linear(num_units, num_units)
        self.output = nn.Linear(num_units, 2)

    def forward(self, X):
        X = self.nonlin(self.dense0(X))
        X = self.dropout(X)
        X = self.nonlin(self.dense1(X))
        return torch.softmax(self.output(X), dim=-1)


class Clock(Callback):
    def initialize(self):
        self.ends = []
        return self

    def on_batch_end(self, net, training=True, **kwargs):
        if training:
            self.ends.append(time.perf_counter())


torch.manual_seed(0)
clock = Clock()
net = NeuralNetClassifier(
    ClassifierModule,
    max_epochs=1,
    lr=1e-3,
    optimizer=torch.optim.Adam,
    batch_size=64,
    iterator_train__shuffle=True,
    train_split=None,
    callbacks=[("clock", clock)],
)
net.fit(X, y)
ends = clock.ends
print("accuracy", net.score(X[:500], y[:500]))
print(f"median step {median(b - a for a, b in zip(ends[8:], ends[9:])) * 1e3:.2f} ms")
