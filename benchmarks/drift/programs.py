"""The programs: what each plants, and the truth that was written before any of them was run.

Each takes `drift` or `steady` and a number of steps, prints a checksum of its weights at its end, and marks the planted
line with `# planted`. Steps take some milliseconds, so that 1,500 of them are recorded within a minute.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

PRELUDE = """
import gc, json, os, subprocess, sys, time
import torch
from torch import nn

GROWS, STEPS = sys.argv[1] == "drift", int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
features, targets = torch.randn(128, 256), torch.randint(10, (128,))
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_function = nn.CrossEntropyLoss(reduction="none")


def train(inputs=features, classes=targets):
    optimizer.zero_grad()
    losses = loss_function(model(inputs), classes)
    losses.mean().backward()
    optimizer.step()
    return losses.detach()


"""
END = """
print(sum(each.detach().double().sum().item() for each in model.parameters()))
"""


class Planted(NamedTuple):
    """A program, and what a report has to say of it.

    Attributes:
        source: What stands between PRELUDE and END.
        cause: The subject of PD010's finding.
        steps: How many steps it makes.
    """

    source: str
    cause: str
    steps: int = 1500

    @property
    def text(self) -> str:
        """The whole program."""
        return PRELUDE + self.source.lstrip() + END

    @property
    def line(self) -> int | None:
        """The number of the planted line; None where no line of the program is at fault."""
        lines = self.text.splitlines()
        return next((number for number, line in enumerate(lines, 1) if line.endswith("# planted")), None)

    @property
    def function_line(self) -> int | None:
        """Where the function with the planted line begins: a stack names that line."""
        functions = [each for each in ast.walk(ast.parse(self.text)) if isinstance(each, ast.FunctionDef)]
        around = (each.lineno for each in functions if each.lineno <= (self.line or 0) <= (each.end_lineno or 0))
        return max(around, default=None)


PROGRAMS = {
    "history": Planted(
        """
history = []

def average(values):
    total = 0.0
    for value in values:  # planted
        total += value
    return total / len(values)

for step in range(STEPS):
    losses = train()
    history = history + losses.tolist() if GROWS else losses.tolist()
    running = average(history)
""",
        "host",
    ),
    "hooks": Planted(
        """
norms = []

def record(module, inputs, output):
    norms[:] = [float(output.norm())]  # planted

for step in range(STEPS):
    if GROWS or step == 0:
        model[0].register_forward_hook(record)
    train()
""",
        "calls",
        900,
    ),
    "graph": Planted(
        """
model = nn.Linear(64, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
inputs = features[:, :64]
state = torch.zeros(128, 32)
for step in range(STEPS):
    optimizer.zero_grad()
    state = 0.9 * state + model(inputs)
    loss = state.pow(2).mean()
    loss.backward(retain_graph=GROWS)  # planted
    optimizer.step()
    if not GROWS:
        state = state.detach()
""",
        "graph",
        700,
    ),
    "collector": Planted(
        """
records = []
for step in range(STEPS):
    train()
    if GROWS:
        records += [[step, sample] for sample in range(1000)]  # a dict of numbers alone is not collected
    if step % 10 == 0:
        gc.collect()  # planted
""",
        "collector",
    ),
    "sequence": Planted(
        """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell = nn.Embedding(1000, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens):
        embedded = self.embedding(tokens)
        mixed = torch.softmax(embedded @ embedded.transpose(1, 2), -1) @ embedded  # planted
        return self.head(self.cell(mixed)).mean(1)

model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    length = 64 + (step // 10 if GROWS else 0)
    tokens = torch.randint(1000, (16, length))
    train(tokens, targets[:16])
""",
        "shapes",
    ),
    "buffer": Planted(
        """
memory = torch.zeros(64, 256)
for step in range(STEPS):
    train()
    with torch.no_grad():
        encoded = model[0](features)
        similar = encoded @ memory.T  # planted
        nearest = similar.argmax(1)
    memory = torch.cat([memory, encoded[:4]])[-(64 if not GROWS else 100_000):]
""",
        "shapes",
    ),
    "moments": Planted(
        """
history = torch.empty(0, 256)
for step in range(STEPS):
    train()
    with torch.no_grad():
        encoded = model[0](features)
    history = torch.cat([history[-(100_000 if GROWS else 32):], encoded[:32]])
    spread = history.std(0).mean()  # planted
""",
        "shapes",
        900,
    ),
    "dataset": Planted(
        """
class Cached(torch.utils.data.Dataset):
    def __init__(self):
        self.seen = []

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        if index not in self.seen and GROWS:  # planted
            self.seen.append(index)
        return features[index % 128], targets[index % 128]

loader = torch.utils.data.DataLoader(Cached(), batch_size=32)
for step, batch in enumerate(loader):
    train(*batch)
    if step + 1 == STEPS:
        break
""",
        "loader_work",
        900,
    ),
    "slow-files": Planted(
        """
class Files(torch.utils.data.Dataset):
    reads = 0

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        self.reads += 1
        time.sleep(0.0002 + (self.reads * 1.5e-7 if GROWS else 0))  # planted
        return features[index % 128], targets[index % 128]

loader = torch.utils.data.DataLoader(Files(), batch_size=32, num_workers=2)
for step, batch in enumerate(loader):
    train(*batch)
    if step + 1 == STEPS:
        break
""",
        "loader_files",
    ),
    "neighbour": Planted(
        """
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
others = []
for step in range(STEPS):
    train()
    if GROWS and step == 2 * STEPS // 5:
        others.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
for other in others:
    other.kill()
    other.wait()
""",
        "cores",
    ),
    "checkpoint": Planted(
        """
history = []
for step in range(STEPS):
    losses = train()
    history = history + losses.tolist() if GROWS else losses.tolist()
    if step % 5 == 0:
        torch.save({"model": model.state_dict(), "history": history}, "checkpoint.pt")  # planted
""",
        "host_calls",
    ),
    "recompiles": Planted(
        """
import torch._dynamo

torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 100_000
score = torch.compile(lambda values: (values * 2).sum(), backend="eager", dynamic=False)
for step in range(STEPS):
    train()
    length = step if GROWS and step > STEPS // 2 else 8
    score(torch.ones(length))  # planted
""",
        "compile",
        800,
    ),
}
