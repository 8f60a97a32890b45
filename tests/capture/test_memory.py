"""Memory at the ends of windows, samples of steps, and calls of activation checkpointing, of programs that run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")

CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.GELU()) for _ in range(3))
head = nn.Linear(8, 2)
optimizer = torch.optim.SGD([*blocks.parameters(), *head.parameters()], lr=0.1)
for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=REENTRANT, preserve_rng_state=True)  # here
    with torch.no_grad():
        checkpoint(head, x, use_reentrant=False)
    loss = nn.functional.cross_entropy(head(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number == 0:
        try:
            checkpoint(lambda x: 1 / 0, x, use_reentrant=False)
        except ZeroDivisionError as error:
            import traceback
            print("frames", [each.name for each in traceback.extract_tb(error.__traceback__)])
print("loss", loss.item())
"""

COMPILED = """
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x):
        return checkpoint(lambda x: self.layer(x).relu(), x, use_reentrant=False)
block, head = Block(), nn.Linear(8, 2)
compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
for x, y in DataLoader(data, batch_size=4):
    loss = nn.functional.cross_entropy(head(compiled(x)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""

LAST_BATCH = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [{"x": x, "y": y} for x, y in data][:26]
for batch in DataLoader(batches, batch_size=4):
    train_step((batch["x"], batch["y"]), optimizer)
for batch in DataLoader(list(range(28)), batch_size=4, collate_fn=lambda batch: ("no tensors", len(batch))):
    train_step((torch.randn(2, 8), torch.tensor([0, 1])), optimizer)
"""


@pytest.mark.parametrize("reentrant", [True, False])
def test_calls_of_checkpoint(launcher: Any, capture_kit: dict[str, Any], reentrant: bool) -> None:
    source = capture_kit["PRELUDE"] + CHECKPOINTED.replace("REENTRANT", str(reentrant))
    # The older kind passes gradients on only where an input asks for them.
    source = source.replace("for block in blocks:", "x.requires_grad_()\n    for block in blocks:")
    recorded = launcher.record(source)
    facts = recorded.facts()["checkpointing"]
    line = next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))
    assert recorded.exit_code == 0, recorded.stderr
    # Those of a part that is computed again, and those without gradients, are none.
    assert facts["calls"] == 3 * 14 + 1
    assert facts["calls_per_step"] == 3
    assert facts["use_reentrant"] is reentrant
    assert facts["preserve_rng_state"] is True
    assert facts["location"]["line"] == line
    plain = launcher.run_plain(f"program{launcher._count}.py")
    assert plain.stdout == recorded.stdout  # the same loss, and no frame of ours in a traceback


def test_checkpoint_in_a_compiled_block(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["PRELUDE"] + COMPILED)
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.stdout == launcher.run_plain(f"program{launcher._count}.py").stdout
    assert recorded.facts()["compile"]["graph_breaks"] in (0, None, {}, [])


def test_memory_and_samples(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(capture_kit["PRELUDE"] + LAST_BATCH)
    facts = recorded.facts()
    memory = facts["memory"]
    assert set(memory["windows"]) >= {"base", "timing", "evidence"}
    assert memory["device_bytes"] is None
    assert facts["checkpointing"]["calls"] == 0
    if sys.platform.startswith("linux"):
        base = memory["windows"]["base"]
        assert 0 < base["rss_bytes"] <= base["rss_peak_bytes"] + (1 << 20) < memory["host_bytes"]
        assert 0 < memory["available_bytes"] <= memory["host_bytes"]
        assert base["allocated_bytes"] is None
        kept = [step["held_bytes"] for step in recorded.steps() if step["held_bytes"] is not None]
        assert kept
        assert 10_000_000 < min(kept) < max(kept) < 2 * memory["host_bytes"]
        assert {step["allocated_bytes"] for step in recorded.steps()} == {None}
    samples = [step["samples"] for step in recorded.steps()]
    assert samples[:6] == [4] * 6
    assert 2 in samples[:8]  # the last batch
    assert samples[-1] is None
    assert set(facts["base_samples"]) == {4}
