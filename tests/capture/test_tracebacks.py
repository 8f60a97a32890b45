"""The traceback of a program that fails inside a recorded step: its frames and torch's, as without perfdoctor."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

FAILING = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
    def forward(self, x):
        return self.layer(x)
model = Model()
{prepare}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(number, x, y):
    if number == int(sys.argv[1]): x = x[:, :3]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    step(number, x, y)
"""
PREPARE = {
    "plain": "",
    "compiled": "model = torch.compile(model, backend='aot_eager')",
    "distributed": """import torch.distributed as dist
dist.init_process_group('gloo')
model = nn.parallel.DistributedDataParallel(model)""",
}
FRAME = re.compile(r'File "([^"]+)", line \d+, in (\S+)')


@pytest.mark.parametrize(("kind", "number"), [("plain", 6), ("plain", 10), ("compiled", 10), ("distributed", 10)])
def test_a_step_that_fails_in_a_window_shows_no_frame_of_ours(
    launcher: Any, capture_kit: dict[str, Any], kind: str, number: int
) -> None:
    script = launcher.write(capture_kit["PRELUDE"] + FAILING.format(prepare=PREPARE[kind]), f"{kind}.py")
    ranks = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1") if kind == "distributed" else ()
    recorded = launcher.run("--", sys.executable, *ranks, str(script), str(number))
    assert recorded.exit_code == 1
    frames = FRAME.findall(recorded.stderr)
    assert not [file for file, _ in frames if "perfdoctor" in file]
    own = [function for file, function in frames if file == str(script)]
    assert own[:2] == ["<module>", "step"]
    assert own.count("step") == 1
    assert recorded.annotated_steps("timing") == ([5] if number == 6 else [5, 6, 7])
