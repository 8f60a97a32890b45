"""Loading that computes and loading that waits: distinguished in the facts, and answered differently by PD101."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from perfdoctor import pipeline
from perfdoctor.facts.captured import CapturedFacts
from perfdoctor.rank import Rank
from perfdoctor.report.finding import Finding
from perfdoctor.rules import registry
from perfdoctor.rules.analyzer import Run
from perfdoctor.testing import TraceBuilder

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
KERNEL = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"


def spin(seconds: float) -> None:
    """Compute for as long, by the thread's own clock: other programs on the machine change nothing."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(("load", "seconds", "computes"), [(spin, 0.005, True), (time.sleep, 0.02, False)])
def test_facts_distinguish_computing_from_waiting(
    load: Callable[[float], None], seconds: float, computes: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from perfdoctor.capture.capture_notes import read_facts
    from perfdoctor.capture.session import profile

    class Slow:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            load(seconds)
            return index

    with profile(tmp_path / "out", skip=0, base=2, warmup=0, timing=2, evidence=0) as session:
        for _ in DataLoader(Slow(), batch_size=2):  # type: ignore[arg-type]
            with session.step():
                pass
    facts = read_facts(session.folder, 0)
    assert facts is not None
    (loader,) = facts.loaders
    assert loader.wait_ns is not None
    assert loader.wait_cpu_ns is not None
    assert loader.wait_ns >= 8 * seconds * 1e9 * (1 if not computes else 0.99)
    if computes:
        assert loader.wait_cpu_ns >= 39_000_000
    else:  # by a margin for what the loader itself computes
        assert loader.wait_cpu_ns < loader.wait_ns / 2


LOOPS: dict[str, tuple[str, list[int]]] = {
    "two epochs": ("for _ in range(3):\n    for batch in loader:\n        train(batch)\n", [4, 8]),
    "an epoch that is left early": (
        "for _ in range(2):\n    for number, batch in enumerate(loader):\n        train(batch)\n"
        "        if number == 2:\n            break\n",
        [3],
    ),
    "an evaluation in between": (
        "for _ in range(2):\n    for batch in loader:\n        train(batch)\n"
        "    with torch.no_grad():\n        for batch in DataLoader(data, batch_size=4):\n            model(batch)\n",
        [4],
    ),
    "a batch at a time": ("for _ in range(8):\n    train(next(iter(loader)))\n", []),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.process
@pytest.mark.usefixtures("forks")
def test_an_epoch_begins_with_a_new_iterator_of_the_training_loader(loop: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, expected = LOOPS[loop]
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "model = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "data = torch.randn(16, 4)\nloader = DataLoader(data, batch_size=4)\n"
        "def train(batch):\n    optimizer.zero_grad()\n    model(batch).mean().backward()\n    optimizer.step()\n"
        + source
    )
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "perfdoctor", "run", "--out", str(folder), "--no-report", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert not done.returncode, done.stderr
    steps = [json.loads(line) for line in (folder / "rank0" / "steps.jsonl").read_text().splitlines()]
    assert [each["step"] for each in steps if "epoch" in each.get("contains", ())] == expected


def find_stall(wait_us: float, cpu_share: float | None, cores: int, workers: int = 0) -> Finding:
    """The finding of PD101 in a step of 1000 us that begins with such a wait."""
    trace = TraceBuilder().step(0, 1000).range(LOADER, 0, wait_us)
    trace.kernel(KERNEL, wait_us + 20, 980 - wait_us, launch_us=wait_us + 10)
    loader = {"num_workers": workers, "wait_ns": 1_000_000}
    if cpu_share is not None:
        loader["wait_cpu_ns"] = round(cpu_share * 1_000_000)
    facts = {"cpu": {"affinity": cores}, "loaders": [loader]}
    rule = next(analyzer for analyzer in registry.load_analyzers() if analyzer.rule == "PD101")
    (finding,) = pipeline.diagnose_run(Run((Rank(trace.trace(), facts=CapturedFacts.parse(facts)),)), [rule]).findings
    return finding


def test_loading_that_computes_is_bounded_by_the_cores() -> None:
    finding = find_stall(800, 1.0, cores=2)  # one core is the training's: one worker has a batch each 800 us
    assert finding.saving.expected_ns == 200_000
    assert "num_workers=1" in (finding.fix or "")
    assert "800.0 ms" not in finding.advice
    assert "there are 2 cores" in finding.advice


def test_loading_that_waits_gains_from_more_workers_than_cores() -> None:
    finding = find_stall(400, 0.1, cores=2)
    assert finding.saving.expected_ns == 400_000
    assert "num_workers=2" in (finding.fix or "")
    two_a_core = find_stall(800, 0.1, cores=2)  # six would keep up: four have a batch each 200 us
    assert "num_workers=4" in (two_a_core.fix or "")


def test_what_computes_bounds_loading_that_mostly_waits() -> None:
    finding = find_stall(900, 0.4, cores=1)  # two workers, at most two a core: a batch each 450 us, a rest of 100 us
    assert finding.saving.expected_ns == 550_000
    assert "num_workers=2" in (finding.fix or "")


def test_loading_that_only_sleeps_gets_no_endless_workers() -> None:
    assert "num_workers=2," in (find_stall(960, 0.0, cores=1).fix or "")


def test_an_only_core_is_shared_by_training_and_loading_that_mostly_waits() -> None:
    assert find_stall(800, 0.0, cores=1).saving.expected_ns == 600_000  # two workers: a batch each 400 us
    assert find_stall(800, 1.0, cores=1).saving.expected_ns == 200_000


@pytest.mark.parametrize("cpu_share", [None, 1.0])
def test_unmeasured_loading_counts_as_computing(cpu_share: float | None) -> None:
    assert find_stall(800, cpu_share, cores=2).saving.expected_ns == 200_000


def test_cpu_time_of_the_training_thread_does_not_bound_its_workers() -> None:
    unmeasured, measured = find_stall(400, None, cores=2, workers=2), find_stall(400, 0.01, cores=2, workers=2)
    assert (measured.saving, measured.fix) == (unmeasured.saving, unmeasured.fix)
    assert {e.label: e.value for e in measured.evidence}["share of loading that computes"] is None
