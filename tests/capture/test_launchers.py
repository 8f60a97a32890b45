"""Launchers, really started: each rank that trains is recorded once, and nothing else is."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoctor.capture.inject._perfdoctor_inject.recorder_settings import WORK_FOLDER

pytest.importorskip("torch")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

DDP = """
import torch.distributed as dist
{begin}
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(data, batch_size=4):
    train_step(batch, optimizer)
leave_group()
"""

# What deepspeed.launcher.launch does with each rank of one machine (0.19.8), for where it is not installed.
STAND_IN_FOR_DEEPSPEED = """
import os, subprocess, sys
environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1], "WORLD_SIZE": "2"}
environment |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
started = []
for rank in ("0", "1"):
    environment |= {"RANK": rank, "LOCAL_RANK": rank}
    started.append(subprocess.Popen([sys.executable, "-u", sys.argv[2], f"--local_rank={rank}"], env=environment))
sys.exit(max(child.wait() for child in started))
"""


@pytest.fixture(scope="module")
def ddp(launcher: Any, capture_kit: dict[str, Any]) -> str:
    """A script for ranks that read their rank from the environment."""
    source = capture_kit["PRELUDE"] + DDP.format(begin='dist.init_process_group("gloo")')
    return str(launcher.write(source, "ranks.py"))


def assert_two_ranks(recorded: Any) -> None:
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.ranks == [0, 1]
    assert recorded.notes == ""
    for rank in (0, 1):
        assert (recorded.facts(rank)["rank"], recorded.facts(rank)["world_size"]) == (rank, 2)
        assert recorded.annotated_steps("timing", rank) == [5, 6, 7]
        assert "gloo:all_reduce" in recorded.names("timing", rank)


def test_ranks_under_deepspeed(launcher: Any, ddp: str, free_port: str) -> None:
    pytest.importorskip("psutil", reason="deepspeed is not installed")
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    command = ("-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--master_port", free_port)
    recorded = launcher.run("--", sys.executable, *command, ddp, env={"DS_ACCELERATOR": "cpu"})
    assert_two_ranks(recorded)


def test_ranks_started_as_deepspeed_does(launcher: Any, ddp: str, free_port: str) -> None:
    stand_in = launcher.write(STAND_IN_FOR_DEEPSPEED, "launch.py")
    assert_two_ranks(launcher.run("--", sys.executable, str(stand_in), free_port, ddp))


def test_ranks_under_accelerate(launcher: Any, capture_kit: dict[str, Any]) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    script = launcher.write(
        capture_kit["PRELUDE"]
        + """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
data = torch.utils.data.ConcatDataset([data, data])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
leave_group()
""",
        "accelerated_ranks.py",
    )
    # It has no other option that starts several processes on one machine; the script says that they are on CPUs.
    launch = ("--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--main_process_port", "0")
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, "--mixed_precision", "no"]
    assert_two_ranks(launcher.run("--", *command, "--dynamo_backend", "no", str(script)))


def test_spawned_ranks_that_only_torch_distributed_knows(launcher: Any, capture_kit: dict[str, Any]) -> None:
    begin = 'dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)'
    body = DDP.format(begin=begin).strip().replace("model = ", "ddp = ").replace("\n", "\n    ")
    source = (
        capture_kit["PRELUDE"].replace("model(x)", "ddp(x)")
        + f"""
import torch.multiprocessing as mp
def work(rank):
    global ddp
    {body}
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    )
    assert_two_ranks(launcher.record(source, str(launcher.folder / "spawned")))


def test_torchrun_whose_ranks_run_perfdoctor(launcher: Any, ddp: str, capture_kit: dict[str, Any]) -> None:
    sizes = ["--skip", "1", "--base", "1", "--warmup", "1", "--timing", "2", "--evidence", "0"]
    command = [sys.executable, *TORCHRUN, "-m", "perfdoctor", "run", *sizes, "--out", "own", ddp]
    environment = capture_kit["environment"]()
    done = subprocess.run(
        command,
        cwd=launcher.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    folder = launcher.folder / "own"
    assert {path.name for path in folder.iterdir()} == {"rank0", "rank1", WORK_FOLDER, "report.html", "report.json"}
    report = json.loads((folder / "report.json").read_text())
    assert report["traces"], "the first rank reports"
    assert done.stdout.count("Training (DDP): a step takes") == 1


def test_a_session_in_every_rank(launcher: Any, capture_kit: dict[str, Any]) -> None:
    source = capture_kit["PRELUDE"] + DDP.format(begin='dist.init_process_group("gloo")').replace(
        "for batch in DataLoader(data, batch_size=4):\n    train_step(batch, optimizer)\n",
        """import perfdoctor
with perfdoctor.profile("sessions", skip=1, base=1, warmup=1, timing=2, evidence=0) as session:
    for batch in DataLoader(data, batch_size=4):
        with session.step():
            train_step(batch, optimizer)
dist.barrier()
if dist.get_rank() == 0:
    report = session.report()
    print([trace.rank for trace in report.traces], session.ranks)
""",
    )
    script = launcher.write(source, "sessions.py")
    done = launcher.run_plain(*TORCHRUN, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1] (0, 1)\n"
    assert {path.name for path in (launcher.folder / "sessions").iterdir()} == {"rank0", "rank1", WORK_FOLDER}


def test_a_shell_script_with_several_pythons(launcher: Any, capture_kit: dict[str, Any]) -> None:
    launcher.write('print("prepared")\n', "prepare.py")
    launcher.write('import torch\nprint("evaluated", torch.ones(2).sum().item())\n', "evaluate.py")
    launcher.write(capture_kit["TRAIN"] + 'print("trained", sys.argv[1:])\n', "fit.py")
    script = launcher.write(
        f"""
        set -e
        {sys.executable} prepare.py
        {sys.executable} evaluate.py
        {sys.executable} fit.py first
        {sys.executable} fit.py second
        """,
        "train.sh",
    )
    recorded = launcher.run("--", "bash", str(script))
    assert recorded.exit_code == 0
    assert recorded.stdout.splitlines() == ["prepared", "evaluated 2.0", "trained ['first']", "trained ['second']"]
    assert recorded.ranks == [0]
    assert recorded.facts()["script"] == "fit.py"
    assert recorded.annotated_steps("timing") == [5, 6, 7]
    assert recorded.notes.startswith("several processes of the program trained as the same rank")


def test_one_training_among_several_pythons_needs_no_note(launcher: Any, capture_kit: dict[str, Any]) -> None:
    launcher.write(capture_kit["TRAIN"], "only.py")
    recorded = launcher.run("--", "sh", "-c", f"{sys.executable} -c 'import torch' && {sys.executable} only.py")
    assert (recorded.exit_code, recorded.notes) == (0, "")
    assert recorded.ranks == [0]


def test_the_rank_that_sleeps_is_recorded_with_the_line_that_sleeps(launcher: Any) -> None:
    example = EXAMPLES / "slow_rank.py"
    recorded = launcher.run("--", sys.executable, *TORCHRUN, str(example), "--steps", "14", "--seconds", "0.02")
    assert recorded.exit_code == 0, recorded.stderr
    assert recorded.ranks == [0, 1]
    line = next(number for number, text in enumerate(example.read_text().splitlines(), 1) if "time.sleep(" in text)
    row = f"@{example}:{line} write_log"
    assert row not in recorded.names("evidence", 0)
    events = recorded.trace("evidence", 1)["traceEvents"]
    slept = [event["dur"] for event in events if event["name"] == row]
    assert len(slept) == 3, "the warm-up step is recorded, too"
    assert all(duration >= 20_000 for duration in slept)
    for rank in (0, 1):
        named = [event for event in recorded.trace("timing", rank)["traceEvents"] if event.get("ph") == "X"]
        count = {
            name: sum(event["name"] == name for event in named) for name in ("gloo:all_reduce", "c10d::allreduce_")
        }
        assert count == {"gloo:all_reduce": 4, "c10d::allreduce_": 4}
    waited = [
        sorted(e["dur"] for e in recorded.trace("timing", rank)["traceEvents"] if e["name"] == "gloo:all_reduce")[1]
        for rank in (0, 1)
    ]
    assert waited[0] > waited[1], "the rank that is on time waits"
