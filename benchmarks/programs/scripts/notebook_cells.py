"""Run a notebook: the cells below, as they would stand in train.ipynb."""
import os
import sys

import nbformat
from nbclient import NotebookClient

STEPS = os.environ.get("STEPS", "60")
CELLS = [
    """import time, torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
STEPS = %s""" % STEPS,
    """class RemoteScans(Dataset):
    "Scans in a bucket: each read waits for the network."
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def fetch(self, i):
        time.sleep(0.003)
        return torch.randn(1, 32, 32, generator=torch.Generator().manual_seed(i))
    def __getitem__(self, i):
        return self.fetch(i), i % 4""",
    """model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 4))
loader = DataLoader(RemoteScans(STEPS * 16), batch_size=16, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()""",
    """times, tic = [], time.perf_counter()
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()
    toc = time.perf_counter()
    times.append(toc - tic)
    tic = toc
print(f"mean step {sum(times[8:]) / len(times[8:]) * 1e3:.2f} ms")""",
]

notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
NotebookClient(notebook, timeout=120).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        sys.stdout.write(output.get("text", ""))
