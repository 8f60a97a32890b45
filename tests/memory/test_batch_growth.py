"""The memory of a larger batch: the algebra, and programs that run with the batch that was asked about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_allocator import record_lives

from perfdoctor.analyzers._memory_of_rank import grows_with_batch
from perfdoctor.analyzers._pd708_batch_growth import BatchGrowth
from perfdoctor.rank import Rank
from perfdoctor.trace import read

PROGRAM = """
import sys
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

{model}
optimizer = torch.optim.AdamW(model.parameters())
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True, with_modules=True) as profiler:
    for number in range(3):
        with record_function(f"ProfilerStep#{{number}}"):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
profiler.export_chrome_trace(sys.argv[1])
"""
MODELS = {
    "convolutions": """
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
x, y = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
""",
    # Parameters and states are most of its memory.
    "wide-layers": """
model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.GELU())))
x, y = torch.randn(BATCH, 1024), torch.randint(1024, (BATCH,))
""",
}

lives = st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 1000))


@given(st.lists(lives, min_size=1, max_size=12), st.data())
def test_the_largest_batch_is_the_one_whose_peak_is_the_limit(
    tensors: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    memory = record_lives(tensors)
    assert memory.peak is not None
    places = np.array(sorted(data.draw(st.sets(st.integers(0, len(tensors) - 1), min_size=1))), np.int64)
    growth = BatchGrowth(memory, places)
    assert growth.peak_bytes(1) == memory.peak.allocated_bytes
    limit_bytes = memory.peak.allocated_bytes * data.draw(st.floats(1, 20))
    ratio = growth.largest_ratio(limit_bytes)
    assert ratio >= 1 - 1e-9
    assert growth.peak_bytes(ratio) == pytest.approx(limit_bytes)
    # What grows more leaves room for less.
    everything = BatchGrowth(memory, np.arange(len(tensors)))
    assert everything.largest_ratio(limit_bytes) <= ratio * (1 + 1e-9)


def test_where_the_rest_alone_is_too_much_no_batch_fits() -> None:
    growth = BatchGrowth(record_lives([(0, 5, 1000), (1, 2, 100)]), np.array([1]))
    assert (growth.largest_ratio(900), growth.largest_ratio(1300)) == (0, 3)


@pytest.mark.process
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_of_a_batch_four_times_as_large(name: str, run_program: Callable[..., None], tmp_path: Path) -> None:
    found = {}
    for batch in (64, 256):
        path = tmp_path / f"{batch}.json"
        code = PROGRAM.format(model=MODELS[name].replace("BATCH", str(batch)))
        run_program("-c", code, path)
        [found[batch], *_] = Rank(read(path)).memory
    small, large = found[64].peak, found[256].peak
    assert small is not None
    assert large is not None
    growth = BatchGrowth(found[64], grows_with_batch(found[64]))
    assert growth.peak_bytes(4) == pytest.approx(large.allocated_bytes, rel=0.02)
    # At least: what is of unknown purpose grows as well.
    assert growth.largest_ratio(large.allocated_bytes) >= 3.9
