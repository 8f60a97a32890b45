"""Recording changes no program: the same results to the bit, and helpers and forks are left alone."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

LOOPS = """
import hashlib
def fingerprint(*models):
    parts = [p.detach().numpy().tobytes() for model in models for p in model.parameters()]
    return hashlib.sha256(b"".join(parts)).hexdigest()
def network():
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))
def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x), y)
def shuffled(workers=0):
    return DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)

def dropout_and_workers():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in shuffled(workers=1):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return fingerprint(model)

def gan_with_accumulation():
    pair = network(), network()
    optimizers = [torch.optim.Adam(model.parameters()) for model in pair]
    for epoch in range(2):
        for number, (x, y) in enumerate(shuffled()):
            for model, optimizer in zip(pair, optimizers):
                (loss_of(model, x, y) / 2).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
    return fingerprint(*pair)

def amp_with_skipped_steps():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)
    for x, y in shuffled():
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, x, y)
        scaler.scale(loss * 100).backward()
        scaler.step(optimizer)
        scaler.update()
    return fingerprint(model) + str(scaler.get_scale())

def lbfgs():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for x, y in shuffled():
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss
        optimizer.step(closure)
    return fingerprint(model)

if __name__ == "__main__":
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        print(name, globals()[name](), torch.rand(1).item())
"""
NAMES = ("dropout_and_workers", "gan_with_accumulation", "amp_with_skipped_steps", "lbfgs")


@pytest.fixture(scope="module")
def loops(launcher: Any, capture_kit: dict[str, Any]) -> tuple[str, list[str]]:
    """The script, and what it prints for each loop without perfdoctor."""
    script = launcher.write(capture_kit["PRELUDE"] + LOOPS, "loops.py")
    plain = launcher.run_plain(str(script), *NAMES)
    assert plain.returncode == 0, plain.stderr
    return str(script), plain.stdout.splitlines(keepends=True)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_the_same_to_the_bit(launcher: Any, loops: tuple[str, list[str]], name: str) -> None:
    script, plain = loops
    recorded = launcher.run(script, name)
    assert (recorded.exit_code, recorded.stderr) == (0, "")
    assert recorded.stdout == plain[NAMES.index(name)]
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert recorded.annotated_steps("evidence")[0] == 9, "one step is enough where stacks are expensive"
    assert len(recorded.steps()) == 14


def test_helper_processes_leave_no_marker(launcher: Any) -> None:
    recorded = launcher.record(
        """
        import importlib.util, os, subprocess, sys
        from multiprocessing import resource_tracker
        resource_tracker.ensure_running()
        torch = importlib.util.find_spec("torch").submodule_search_locations[0]
        worker = [sys.executable, torch + "/_inductor/compile_worker/__main__.py", "--help"]
        subprocess.run(worker, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        marks = os.listdir(os.environ["PERFDOCTOR_CAPTURE_MARKS"])
        print(sorted(mark.partition(".")[2] for mark in marks), f"{os.getpid()}.python" in marks)
        """
    )
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.stdout == "['python', 'python'] True\n", "the program, and the one child that is no helper"


def test_a_forked_child_records_nothing_and_ends_as_without_us(launcher: Any, capture_kit: dict[str, Any]) -> None:
    recorded = launcher.record(
        capture_kit["TRAIN"]
        + """
    if number in (6, 10):
        child = os.fork()
        if not child:
            for _ in range(30): train_step(batch, optimizer)
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print("done", os.getpid())
"""
    )
    assert (recorded.exit_code, recorded.stderr) == (0, "")
    lines = recorded.stdout.splitlines()
    assert lines[:2] == ["5", "5"]
    assert lines[2] == f"done {recorded.facts()['pid']}"
    assert len(recorded.steps()) == 14
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert recorded.annotated_steps("evidence")[0] == 9
